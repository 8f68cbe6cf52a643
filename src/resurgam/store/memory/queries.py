"""Questions to code that the asker does not have, and messages on topics, in the memory store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Raw

from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.store.protocol import MESSAGES_KEPT


@dataclass(slots=True)
class _Asked:
    """A question, who has it in hand until when, and what was answered."""

    question: r.QueryTask
    leased_until: int = 0
    reply: r.QueryResult | None = None


class Questions:
    """Questions and their replies, each until the moment at which it is given up."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def ask(self, question: r.QueryTask, now: int) -> None:
        """Keep a question; the same one is not asked twice."""
        self._give_up(now)
        self._asked.setdefault(question.question_id, _Asked(question))

    def waiting(self, queues: Sequence[str], now: int) -> Iterator[r.QueryTask]:
        """Return those that nobody has in hand, oldest first."""
        for asked in self._asked.values():
            free = asked.reply is None and asked.leased_until <= now < asked.question.until
            if free and asked.question.queue in queues:
                yield asked.question

    def lease(self, questions: Sequence[r.QueryTask], until: int) -> None:
        """Hand questions out until then."""
        for question in questions:
            self._asked[question.question_id].leased_until = until

    def answer(self, reply: r.QueryResult, now: int) -> None:
        """Keep the first reply to a question that still waits for one."""
        asked = self._asked.get(reply.question_id)
        if asked is not None and asked.reply is None and now < asked.question.until:
            asked.reply = reply

    def reply(self, question_id: str, now: int) -> r.QueryResult | None:
        """Return what was answered to a question."""
        asked = self._asked.get(question_id)
        return None if asked is None or asked.question.until <= now else asked.reply

    def is_open(self, question_id: str, now: int) -> bool:
        """Whether there is a question that may still be answered."""
        asked = self._asked.get(question_id)
        return asked is not None and asked.reply is None and now < asked.question.until

    def purge(self, execution_id: str) -> list[str]:
        """Remove all that was asked of an execution; return the ids."""
        gone = [key for key, asked in self._asked.items() if asked.question.execution_id == execution_id]
        for key in gone:
            del self._asked[key]
        return gone

    def _give_up(self, now: int) -> None:
        self._asked = {key: asked for key, asked in self._asked.items() if now < asked.question.until}


class Topics:
    """What was published lately, numbered across all topics."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, str, int, Raw]] = []
        self.last = 0

    def publish(self, publication: Publication, now: int) -> None:
        """Keep a message, and give up those that are too old."""
        self._messages = [message for message in self._messages if message[2] >= now - MESSAGES_KEPT]
        self.last += 1
        self._messages.append((self.last, publication.topic, now, publication.value))

    def after(self, topic: str, number: int) -> tuple[Raw, ...]:
        """Return what was published on a topic after the message with that number."""
        return tuple(body for n, name, _, body in self._messages if name == topic and n > number)
