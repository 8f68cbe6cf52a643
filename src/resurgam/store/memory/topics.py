"""Messages on topics, in the memory store."""

from msgspec import Raw

from resurgam.core.outcome import Publication
from resurgam.store.rules import MESSAGES_KEPT


class Topics:
    """Recent messages, numbered across all topics."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, str, int, Raw]] = []
        self.last = 0

    def publish(self, publication: Publication, now: int) -> None:
        """Keep a message, and delete those that are too old."""
        self._messages = [message for message in self._messages if message[2] >= now - MESSAGES_KEPT]
        self.last += 1
        self._messages.append((self.last, publication.topic, now, publication.value))

    def after(self, topic: str, number: int) -> tuple[Raw, ...]:
        """Return the messages on a topic after the one with that number."""
        return tuple(body for n, name, _, body in self._messages if name == topic and n > number)
