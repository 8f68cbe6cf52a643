"""Messages on topics, in the memory store."""

from collections import Counter

from msgspec import Raw

from resurgam.core.outcome import Publication
from resurgam.store.rules import MESSAGES_KEPT


class Topics:
    """Recent messages. A cursor is the number of a message among all that were published on its topic."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, str, int, Raw]] = []
        self._published: Counter[str] = Counter()

    def publish(self, publication: Publication, now: int) -> None:
        """Keep a message, and delete those that are too old."""
        self._messages = [message for message in self._messages if message[2] >= now - MESSAGES_KEPT]
        self._published[publication.topic] += 1
        self._messages.append((self._published[publication.topic], publication.topic, now, publication.value))

    def newest(self, topic: str) -> str:
        """Return the cursor after everything that was published on a topic."""
        return str(self._published[topic])

    def after(self, topic: str, cursor: str) -> tuple[Raw, ...]:
        """Return the messages on a topic after a cursor."""
        number = int(cursor or 0)
        return tuple(body for n, name, _, body in self._messages if name == topic and n > number)
