"""The parts of a recorder: its verdict, its mode, its pending calls, and its ended scopes."""

from typing import Any

import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import codec_for
from resurgam.core.errors import Evicted, LatentHistory, NotDeterministic
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import Cursor, Replayed
from resurgam.core.operation import Operation
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope
from resurgam.runtime.loop.verdict import Verdict
from resurgam.runtime.matching.ended_scopes import EndedScopes
from resurgam.runtime.matching.mode import LIVE, REPLAYING, Rehearsing
from resurgam.runtime.matching.pending import LoopProgress, PendingCommands, Race
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.registry import Registry
from resurgam.testing.simulation import start_event


def recorder(mode: Any = LIVE) -> Recorder:
    async def w(ctx):
        pass

    workflow = Registry().workflow(w)
    started = start_event(workflow, ())
    return Recorder((started,), workflow=workflow, started=started, settings=Settings(), mode=mode)


def timer(seq: int, *place: int) -> events.TimerStarted:
    location = Location(*((part,) for part in place or (seq,)))
    return events.TimerStarted(seq=seq, location=location, command=f"Timer({seq})", deadline=seq)


def future(seq: int, held: Recorder) -> Durable[Any]:
    return Durable(held.loop, timer(seq), held, codec_for(Any))


def test_the_last_reason_is_the_verdict_and_every_refusal_counts():
    verdict = Verdict(patience=2)
    first = verdict.decide(Evicted("first"))
    assert verdict.reason is first
    second = verdict.decide(Evicted("second"))
    assert [verdict.refuse(second) for _ in range(2)] == [second, second]
    assert (verdict.reason, verdict.exhausted) == (second, False)
    verdict.refuse(second)
    assert verdict.exhausted


def test_a_call_after_the_verdict_raises_its_reason_and_appends_nothing():
    held = recorder()
    reason = held.verdict.decide(Evicted("over"))
    with pytest.raises(Evicted) as found:
        held.issue(events.TimerStarted, deadline=1)
    assert found.value is reason
    assert held.log.new == []


def test_code_that_is_exhausted_gets_a_future_that_never_settles():
    held = recorder()
    held.verdict.decide(Evicted("over"))
    while not held.verdict.exhausted:
        with pytest.raises(Evicted):
            held.call(events.TimerStarted, deadline=1)
    assert not held.call(events.TimerStarted, deadline=1).done()
    assert held.pending.futures == {}


def test_a_context_outside_of_its_own_workflow_is_refused():
    with pytest.raises(NotDeterministic, match="outside of that workflow's own code"):
        recorder().scope()


@pytest.mark.parametrize(
    ("mode", "replaying", "rehearsing"),
    [(LIVE, False, False), (REPLAYING, True, False), (Rehearsing(), True, True)],
)
def test_a_mode_says_whether_the_code_was_run_before_and_whether_it_counts(mode, replaying, rehearsing):
    assert (mode.replaying, mode.rehearsing) == (replaying, rehearsing)


@pytest.mark.parametrize(("mode", "logged"), [(LIVE, 1), (REPLAYING, 0), (Rehearsing(), 0)])
def test_warnings_are_logged_once_and_not_on_replay(mode, logged, caplog):
    recorder(mode=mode).warn("something")
    assert len(caplog.records) == logged


def test_a_rehearsal_passes_values_on_as_they_are():
    codec, value = codec_for(Any), object()
    assert recorder(mode=Rehearsing()).payloads.write(codec, value, "x") is value
    assert bytes(recorder().payloads.write(codec, [1], "x")) == b"[1]"
    assert recorder().payloads.read(codec, Raw(b"[1]"), "x") == [1]


def test_an_answered_call_is_removed_with_all_that_belongs_to_it():
    held, pending = recorder(), PendingCommands()
    for seq in (2, 3):
        pending.futures[seq] = future(seq, held)
        pending.add_listener(seq, ("go",))
        pending.add_operation(Operation(seq, "f", print, (), codec_for(Any)))
    waiting = pending.futures[2]
    assert pending.take(2) == (waiting, ("go",))
    assert pending.take(2) == (None, ())
    assert list(pending.futures) == list(pending.listeners) == list(pending.operations) == [3]
    pending.add_race(3, Race([]))
    pending.drop(3)
    assert [pending.futures, pending.listeners, pending.operations, pending.races] == [{}] * 4


def test_the_next_deadline_is_of_a_call_that_is_still_open():
    held, pending = recorder(), PendingCommands()
    for deadline, seq in ((30, 2), (10, 3), (20, 4)):
        pending.futures[seq] = future(seq, held)
        pending.add_deadline(deadline, seq)
    pending.drop(3)
    assert pending.next_deadline() == (20, 4)
    pending.drop(4)
    pending.drop(2)
    assert pending.next_deadline() is None


def test_operations_are_ready_until_they_are_handed_out_or_answered():
    pending = PendingCommands()
    for seq in (2, 3, 4):
        pending.add_operation(Operation(seq, "f", print, (), codec_for(Any)))
    pending.handed_out[3] = None
    assert [operation.ref for operation in pending.ready_operations({2, 3})] == [2]
    pending.forget([3])
    assert [operation.ref for operation in pending.ready_operations({2, 3})] == [2, 3]


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


def test_many_overdue_entries_are_taken_in_their_order_without_a_look_at_all_for_each():
    early = recorder().early
    numbers = [(7 * n) % 1000 + 2 for n in range(1000)]
    for n in numbers:
        early.add_overdue(events.TimerFired(seq=Counted(n), ref=1))
    Counted.compared = 0
    assert [early.next_overdue().seq for _ in numbers] == sorted(numbers)
    assert not early.overdue
    assert Counted.compared < 30 * len(numbers)


def test_a_cancelled_command_is_added_to_the_others_without_a_copy_of_them():
    pending = PendingCommands()
    pending.note_cancelled(timer(2))
    noted = pending.cancelled
    pending.note_cancelled(timer(3))
    assert pending.cancelled is noted
    assert [command.seq for command in noted] == [2, 3]


def test_a_checkpoint_settles_the_loop_that_waits_or_is_kept():
    held = recorder()
    command = events.LoopStarted(seq=2, location=Location((1,)), command="Loop(0)", forget_every=5)
    loop = LoopProgress(command, Raw(b"null"))
    early = events.LoopCheckpointed(ref=2, iteration=5)
    loop.checkpointed(early)
    assert loop.early == {5: early}
    waiting = loop.waiting = held.loop.create_future()
    loop.wants = events.LoopCheckpointed
    due = events.LoopCheckpointed(ref=2, iteration=10)
    loop.checkpointed(due)
    assert waiting.result() is due
    assert loop.wants is None


def test_only_places_in_the_body_of_a_loop_that_forgets_are_inside_one():
    pending = PendingCommands()
    for seq, every in ((1, None), (2, 5)):
        command = events.LoopStarted(seq=seq, location=Location((seq,)), command="Loop(0)", forget_every=every)
        pending.add_loop(LoopProgress(command, Raw(b"null")))
    assert pending.is_inside_forgetting_loop(Location((2,), (1,), (1,)))
    assert not pending.is_inside_forgetting_loop(Location((1,), (1,), (1,)))
    pending.remove_loop(2)
    assert not pending.is_inside_forgetting_loop(Location((2,), (1,), (1,)))


COMMANDS = [timer(2, 1), timer(3, 2)]


def scope_of(matching: str = "location", location: Location = ROOT) -> Scope:
    return Scope(location, Cursor(COMMANDS), seed="", owner=None, version=1, matching=matching)


def divergence(ended: EndedScopes) -> BaseException | None:
    verdict = Verdict()
    ended.check(verdict)
    return verdict.reason


def test_a_scope_that_returned_before_its_history_ended_diverges_unless_it_is_matched_later():
    ended, scope = EndedScopes(), scope_of()
    assert divergence(ended) is None
    ended.add_returned(scope)
    latent = divergence(ended)
    assert isinstance(latent, LatentHistory)
    assert latent.event_seq == 2
    for command in COMMANDS:
        scope.cursor.take(Replayed(command))
    assert divergence(ended) is None


def test_by_sequence_a_scope_may_return_early():
    ended = EndedScopes()
    ended.add_returned(scope_of("sequence"))
    assert divergence(ended) is None


def test_locations_of_a_scope_that_was_cut_off_have_no_receiver():
    ended = EndedScopes()
    ended.add_cut(scope_of(location=Location((3,))))
    assert ended.is_cut_off(Location((3,), (1,)))
    assert not ended.is_cut_off(Location((4,), (1,)))
