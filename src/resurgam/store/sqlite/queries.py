"""Questions to code that the asker does not have."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from resurgam.core.event import NULL, Failure
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.session import Row, Session, open_questions
from resurgam.store.sqlite.writing import Writing
from resurgam.store.watches import reply_to

_failures = msgspec.json.Decoder(Failure)


class Asking(Writing):
    """What verbs do to questions."""

    def ask(self, question: r.QueryTask) -> r.Asked | r.Missing:
        """Keep a question for whoever has the code, and give up those whose time is over."""
        if not self._session.all("progress", execution_id=question.execution_id):
            return r.Missing()
        self._session.do("give_up_questions", now=self._now)
        fields = {name: getattr(question, name) for name in r.QueryTask.__struct_fields__}
        self._session.do("ask_question", **{**fields, "input": text_of(question.input)})
        self.changes.work = True
        return r.Asked()

    def claim_questions(self, queues: Sequence[str], limit: int) -> list[r.QueryTask]:
        """Hand out questions that nobody has in hand."""
        self._session.do("give_up_questions", now=self._now)
        rows = open_questions(self._session, queues, limit, self._now)
        leased = [{"question_id": row["question_id"], "until": self._until} for row in rows]
        self._session.many("lease_question", leased)
        self.changes.due(self._until)
        return [_question_of(row) for row in rows]

    def answer(self, reply: r.QueryResult) -> None:
        """Keep the first reply to a question that still waits for one."""
        self._session.do(
            "answer_question",
            question_id=reply.question_id,
            result=text_of(reply.result),
            failure=None if reply.failure is None else encode(reply.failure),
            now=self._now,
        )
        self.changes.touched.add(reply_to(reply.question_id))


def _question_of(row: Row) -> r.QueryTask:
    return r.QueryTask(
        question_id=row["question_id"],
        execution_id=row["execution_id"],
        queue=row["queue"],
        name=row["name"],
        input=Raw(row["input"].encode()),
        until=row["until"],
    )


def reply_of(session: Session, question_id: str, now: int) -> r.QueryResult | None:
    """Return what was answered to a question."""
    rows = session.all("reply", question_id=question_id, now=now)
    if not rows or not rows[0]["replied"]:
        return None
    result, failure = rows[0]["result"], rows[0]["failure"]
    return r.QueryResult(
        question_id=question_id,
        result=NULL if result is None else Raw(result.encode()),
        failure=None if failure is None else _failures.decode(failure),
    )


def is_open(session: Session, question_id: str, now: int) -> bool:
    """Whether there is a question that may still be answered."""
    rows = session.all("reply", question_id=question_id, now=now)
    return bool(rows) and not rows[0]["replied"]
