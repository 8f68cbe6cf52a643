"""Creations of a batch go by one function, so that they are made in order."""

import pytest

from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, request, scheduled


def creation(b, entity_id, *, first):
    """Return the creation of an execution, with its first commit or without."""
    started = b.started(entity_id)
    if not first:
        return r.Creation(started=started)
    commit = r.Commit(
        execution_id=started.execution_id,
        entity_id=entity_id,
        epoch=1,
        base_seq=1,
        wake=0,
        outcome=Outcome(events=(scheduled(request(2)),), activities=(request(2),)),
        worker="first",
        eager=frozenset({2}),
        covers=True,
    )
    return r.Creation(started=started, offer=r.EagerOffer(worker="first", queues=(QUEUE,)), first=commit)


@pytest.mark.parametrize(
    ("firsts", "claimed"),
    [
        ((True, False), [True, False]),
        ((False, True), [False, False]),
        ((True, True), [True, True]),
        ((True, False, True), [True, False, False]),
    ],
)
async def test_creations_with_a_first_commit_and_without_are_made_in_order(b, firsts, claimed):
    await b.store.inspector.get("order")
    flights = b.store.flights
    parts = [creation(b, f"order-{9 - n}", first=first) for n, first in enumerate(firsts)]
    answers = await b.store.create(parts)
    assert [answer.claim is not None for answer in answers] == claimed
    assert b.store.flights - flights == 1
