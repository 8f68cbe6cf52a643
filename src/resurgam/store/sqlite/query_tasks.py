"""Queries that wait for a worker with the code, and their results."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from resurgam.core.event import NULL, Failure
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.claimable import claimable_queries
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.sqlite.transaction import Transaction
from resurgam.store.watches import reply_to

_failures = msgspec.json.Decoder(Failure)


def submit(t: Transaction, task: r.QueryTask) -> r.Asked | r.Missing:
    """Store a query for a worker that has the code, and delete the queries whose time is over."""
    if not t.session.fetch("progress", execution_id=task.execution_id):
        return r.Missing()
    t.session.execute("give_up_questions", now=t.now)
    fields = {name: getattr(task, name) for name in r.QueryTask.__struct_fields__}
    t.session.execute("ask_question", **{**fields, "input": text_of(task.input)})
    t.changes.work = True
    return r.Asked()


def claim(t: Transaction, queues: Sequence[str], limit: int) -> list[r.QueryTask]:
    """Lease queries that no worker has."""
    t.session.execute("give_up_questions", now=t.now)
    rows = claimable_queries(t.session, queues, limit, t.now)
    leased = [{"question_id": row["question_id"], "until": t.lease_until} for row in rows]
    t.session.execute_many("lease_question", leased)
    t.changes.due(t.lease_until)
    return [_task_of(row) for row in rows]


def complete(t: Transaction, result: r.QueryResult) -> None:
    """Store the first result of a query that still waits for one."""
    t.session.execute(
        "answer_question",
        question_id=result.question_id,
        result=text_of(result.result),
        failure=None if result.failure is None else encode(result.failure),
        now=t.now,
    )
    t.changes.touched.add(reply_to(result.question_id))


def result_of(session: Session, question_id: str, now: int) -> r.QueryResult | None:
    """Return the result of a query, if there is one."""
    rows = session.fetch("reply", question_id=question_id, now=now)
    if not rows or not rows[0]["replied"]:
        return None
    result, failure = rows[0]["result"], rows[0]["failure"]
    return r.QueryResult(
        question_id=question_id,
        result=NULL if result is None else Raw(result.encode()),
        failure=None if failure is None else _failures.decode(failure),
    )


def is_open(session: Session, question_id: str, now: int) -> bool:
    """Whether a query may still be answered."""
    rows = session.fetch("reply", question_id=question_id, now=now)
    return bool(rows) and not rows[0]["replied"]


def _task_of(row: Row) -> r.QueryTask:
    return r.QueryTask(
        question_id=row["question_id"],
        execution_id=row["execution_id"],
        queue=row["queue"],
        name=row["name"],
        input=Raw(row["input"].encode()),
        until=row["until"],
    )
