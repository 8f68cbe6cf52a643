"""Commits that take the path of a step leave the same keys as those that take the general one."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.store.redis.store import RedisStore
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, request, scheduled, signal
from support.redis import fresh_url, shared_server

ABSENT = 1_000_000
"""The id of an inbox entry that is not there: to consume it changes nothing, but is more than a step does."""


READERS = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"stream": ("XRANGE", "-", "+"),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"list": ("LRANGE", "0", "-1"),
    b"set": ("SMEMBERS",),
}


def keys_of(url: str) -> dict[str, object]:
    """Return everything that partitions hold under the prefix of a URL, except who owns a lease."""
    server, prefix = shared_server(), url.partition("prefix=")[2].partition("&")[0]
    found: dict[str, object] = {}
    for key in server.ask("KEYS", f"{prefix}:{{p*"):
        kind = server.ask("TYPE", key)
        verb, *arguments = READERS[kind]
        value = server.ask(verb, key, *arguments)
        if kind == b"hash":
            value = dict(zip(value[::2], value[1::2], strict=True))
            value.pop(b"owner", None)
            value.pop(b"id", None)  # each store has its own
        found[key.decode().removeprefix(prefix)] = sorted(value) if kind == b"set" else value
    return found


class Course:
    """An instance in a store of its own, committed step by step."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.url = fresh_url("partitions=1")
        self.store = RedisStore(self.url, clock, name="same", lease=LEASE)
        self.seq = 1

    def started(self, name: str) -> events.WorkflowStarted:
        ids = dict.fromkeys(("entity_id", "execution_id", "run_id", "tree_id"), name)
        return events.WorkflowStarted(seq=1, at=self.clock.now(), name="sell", python="3.11", queue="default", **ids)

    async def begin(self) -> None:
        await self.store.create([r.Creation(started=self.started("order"))])
        [self.claim] = await self.store.claim("first", ["default"], 1)

    async def step(self, kind: str, consumed: Sequence[int]) -> r.Committed | r.Refused:
        """Commit; *kind* says what is unusual about it."""
        refs = [self.seq + 1, self.seq + 2] if kind == "two" else [] if kind in {"empty", "timer"} else [self.seq + 1]
        requests = tuple(request(ref) for ref in refs)
        outcome = Outcome(
            events=tuple(scheduled(one) for one in requests),
            activities=requests,
            consumed=tuple(consumed),
            wake_at=self.clock.now() + 5 if kind == "timer" else None,
        )
        part = r.Commit(
            entity_id="other" if kind == "stranger" else "order",
            execution_id="order",
            epoch=self.claim.epoch + (kind == "stale"),
            base_seq=self.seq - (kind == "behind"),
            wake=0,
            outcome=outcome,
            worker="first",
            release=kind == "last",
            eager=frozenset(refs),
            covers=kind != "bare",
        )
        [answer] = await self.store.commit([part])
        if isinstance(answer, r.Committed):
            self.seq += len(outcome.events)
        return answer

    async def disturb(self, kind: str) -> None:
        """Change something about the instance from outside."""
        if kind == "signal":
            await self.store.deliver([r.Delivery(event=signal("news"), entity_id="order")])
        if kind == "pause":
            await self.store.deliver([r.Delivery(event=events.WorkflowPaused(at=1), entity_id="order")])
        if kind == "busy":
            await self.store.create([r.Creation(started=self.started("other"))])
            [claim] = await self.store.claim("second", ["default"], 1)
            part = r.Commit(
                entity_id="other",
                execution_id="other",
                epoch=claim.epoch,
                base_seq=1,
                wake=0,
                outcome=Outcome(events=(scheduled(request(2)),), activities=(request(2),)),
            )
            await self.store.commit([part])
        if kind == "fail":
            lease = r.Lease(entity_id="order", execution_id="order", epoch=self.claim.epoch)
            await self.store.release([r.Release(lease=lease, failed="no")])
            [self.claim] = await self.store.claim("first", ["default"], 1) or [self.claim]


STEPS = ["one", "two", "last", "empty", "timer", "bare", "stale", "behind", "stranger"]
CHANGES = ["signal", "pause", "fail", "busy"]


@pytest.mark.parametrize("change", ["", *CHANGES])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(STEPS), min_size=1, max_size=6), when=st.integers(0, 5))
async def test_a_step_leaves_what_the_general_commit_leaves(change: str, kinds: list[str], when: int) -> None:
    clock = ManualClock()
    plain, general = Course(clock), Course(clock)
    try:
        for course in (plain, general):
            await course.begin()
        for number, kind in enumerate(kinds):
            if change and number == when:
                for course in (plain, general):
                    await course.disturb(change)
            assert await plain.step(kind, ()) == await general.step(kind, (ABSENT,))
        left = keys_of(plain.url)
        assert left
        assert left == keys_of(general.url)
    finally:
        await plain.store.close()
        await general.store.close()
