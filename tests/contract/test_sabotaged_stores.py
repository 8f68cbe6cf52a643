"""The suite has teeth: a store with any one promise broken is found out, by the case that is about that promise."""

import inspect
from contextlib import asynccontextmanager
from unittest.mock import patch

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory import store as memory
from resurgam.store.memory.activities import Activities
from resurgam.store.memory.commits import Commits
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.feed import MemoryFeed
from resurgam.store.memory.inspector import MemoryInspector
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.queries import MemoryQueries
from resurgam.store.memory.store import MemoryStore
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics
from resurgam.store.memory.transfer import MemoryTransfer
from resurgam.store.memory.values import MemoryValues
from resurgam.store.memory.workers import MemoryWorkers
from resurgam.store.watches import Waiters
from resurgam.testing.contract import LEASE, StoreContract

SABOTAGE = {}


def breaks(*cases):
    """Put a sabotaged store, or a sabotaged part of one, into the table, with the cases that must find it out."""

    def register(kind):
        SABOTAGE[kind.__name__] = (kind, cases)
        return kind

    return register


@breaks("test_a_signal_that_was_checked_against_other_schemas_is_not_delivered")
class DeliversWhatNobodyChecked(Lifecycle):
    def deliver(self, part):
        return super().deliver(msgspec.structs.replace(part, schemas=None))


@breaks("test_a_worker_that_lost_its_lease_is_refused", "test_the_same_claim_commits_only_once")
class NoEpochForInstances(Leases):
    def held(self, execution, epoch):
        row = self._table.find(execution)
        return r.Refused(reason="there is no such instance") if row is None else row


@breaks("test_an_activity_that_lost_its_lease_is_refused")
class NoEpochForActivities(Leases):
    def holder(self, lease):
        row = self._table.rows.get(lease.execution_id)
        activity = None if row is None or lease.ref is None else row.activities.get(lease.ref)
        return super().holder(lease) if activity is None else activity


@breaks(
    "test_a_final_release_makes_an_instance_a_dead_letter",
    "test_a_final_release_makes_an_activity_a_dead_letter",
)
class NoFinalRelease(Leases):
    def release(self, part):
        return super().release(msgspec.structs.replace(part, final=False))


@breaks(
    "test_instances_are_claimed_in_the_order_in_which_they_became_ready",
    "test_instances_that_are_always_due_do_not_starve_a_new_one",
)
class OldestFirst(Table):
    def claimable(self, worker, queues):
        order = list(self.rows)
        return iter(sorted(super().claimable(worker, queues), key=lambda row: order.index(row.instance.execution_id)))


@breaks("test_activities_are_claimed_in_the_order_in_which_they_became_available")
class ActivitiesByName(Table):
    def claimable_activities(self, queues):
        return iter(sorted(super().claimable_activities(queues), key=lambda activity: activity.execution_id))


@breaks("test_a_commit_from_another_state_is_refused")
class NoBaseSeq(Commits):
    def commit(self, part):
        row = self._table.rows[part.execution_id]
        return super().commit(msgspec.structs.replace(part, base_seq=row.instance.last_seq))


@breaks("test_what_comes_while_an_instance_is_held_makes_it_ready_after_its_release")
class NoWakeCounter(Table):
    def free(self, row, *, ready):
        super().free(row, ready=ready and row.epoch == 0)


@breaks("test_nothing_wakes_an_instance_for_which_nothing_came")
class AlwaysReady(Table):
    def free(self, row, *, ready):
        super().free(row, ready=True)


@breaks("test_a_second_answer_is_refused")
class SecondAnswers(Activities):
    def complete(self, part):
        answer = super().complete(part)
        if isinstance(answer, r.Refused) and part.execution_id in self._table.rows:
            self._table.put(self._table.rows[part.execution_id], part.event)
            return r.Accepted()
        return answer


@breaks(
    "test_an_activity_that_no_worker_has_claimed_is_answered_from_outside",
    "test_an_activity_that_waits_for_its_next_attempt_is_answered_from_outside",
    "test_an_activity_that_a_worker_runs_is_answered_from_outside",
    "test_an_activity_of_a_paused_instance_is_answered_from_outside",
    "test_an_activity_that_outlives_its_instance_is_answered_from_outside_after_the_end",
)
class NoAnswerWithoutALease(Activities):
    def _at_attempt(self, part):
        return None


@breaks("test_an_activity_that_waits_for_its_next_attempt_is_answered_from_outside")
class AnswersOfAnyAttempt(Activities):
    def _at_attempt(self, part):
        return self._table.rows[part.execution_id].activities.get(part.event.ref)


@breaks("test_an_activity_that_has_begun_is_not_withdrawn_if_it_must_never_have_started")
class WithdrawsWhatHasBegun(Activities):
    def withdraw(self, row, withdrawal):
        super().withdraw(row, msgspec.structs.replace(withdrawal, never_started=False))


@breaks("test_an_activity_that_outlives_its_instance_is_handed_out_after_the_end")
class NothingOutlives(Activities):
    def claim(self, activity, worker):
        activity.request = msgspec.structs.replace(activity.request, outlives=False)
        return super().claim(activity, worker)


@breaks("test_entries_are_consumed_by_id")
class ConsumedByRange(Commits):
    def commit(self, part):
        inbox = self._table.rows[part.execution_id].inbox
        upto = tuple(key for key in inbox if key <= max(part.outcome.consumed, default=0))
        outcome = msgspec.structs.replace(part.outcome, consumed=upto)
        return super().commit(msgspec.structs.replace(part, outcome=outcome))


@breaks("test_lost_instances_come_back_in_every_queue", "test_all_queues_are_served_by_one_claim")
class OnlyTheFirstQueue(Table):
    def claimable(self, worker, queues):
        return super().claimable(worker, queues[:1])


@breaks("test_lost_activities_come_back_in_every_queue")
class OnlyTheFirstQueueOfLostActivities(Table):
    def claimable_activities(self, queues):
        for activity in super().claimable_activities(queues):
            if activity.deliveries == 0 or activity.request.queue == queues[0]:
                yield activity


@breaks("test_an_activity_that_kills_its_workers_is_made_a_dead_letter")
class NoDeadLetters(Activities):
    def claim(self, activity, worker):
        activity.deliveries = min(activity.deliveries, 1)
        return super().claim(activity, worker)


@breaks("test_a_graceful_release_is_no_failed_delivery")
class EveryReleaseCounts(Leases):
    def release(self, part):
        return super().release(msgspec.structs.replace(part, failed="counted"))


@breaks("test_a_retry_is_invisible_until_its_moment")
class RetriesAtOnce(Table):
    def schedule(self, row, activity):
        activity.visible_at = self.clock.now()
        super().schedule(row, activity)


@breaks("test_a_deadline_wakes_an_instance_at_its_moment")
class NoDeadlines(Table):
    def wake_instance(self, row, now):
        if row.leased_until is not None:
            super().wake_instance(row, now)


@breaks("test_a_claimed_activity_of_an_ended_workflow_runs_on")
class WithdrawsRunningActivities(Commits):
    def commit(self, part):
        for withdrawal in part.outcome.withdrawals:
            activity = self._table.rows[part.execution_id].activities.get(withdrawal.ref)
            if activity is not None:
                activity.leased_until = None
        return super().commit(part)


@breaks("test_a_creation_that_is_repeated_changes_nothing")
class CreatesAnew(Lifecycle):
    def create(self, part):
        number = f"{part.started.run_id}/{len(self._table.rows)}"
        return super().create(
            msgspec.structs.replace(part, started=msgspec.structs.replace(part.started, run_id=number))
        )


@breaks("test_purging_an_old_execution_leaves_the_current_one_alone")
class PurgesThePointer(Lifecycle):
    def purge(self, execution):
        row = self._table.find(execution)
        answer = super().purge(execution)
        if isinstance(answer, r.Purged):
            self._table.executions.pop(row.instance.entity_id, None)
        return answer


@breaks(
    "test_ended_executions_are_listed_in_the_order_in_which_they_ended",
    "test_executions_that_ended_at_one_moment_are_listed_once_each",
)
class ListsEndedExecutionsUnordered(MemoryInspector):
    async def ended(self, query):
        return [row.instance for row in self._table.rows.values() if query.fits(row.instance)][::-1][: query.limit]


@breaks("test_a_pass_removes_what_ended_before_the_moment")
class ListsYoungExecutionsToo(MemoryInspector):
    async def ended(self, query):
        return await super().ended(msgspec.structs.replace(query, before=2**62))


@breaks("test_ended_executions_are_listed_in_the_order_in_which_they_ended")
class ListsExecutionsWithOpenWork(MemoryInspector):
    async def ended(self, query):
        for row in self._table.rows.values():
            row.instance = msgspec.structs.replace(row.instance, deactivated=row.instance.status.terminal)
        return await super().ended(query)


@breaks("test_a_signal_to_an_unknown_entity_is_missing")
class AcceptsSignalsToUnknownEntities(Lifecycle):
    def deliver(self, part):
        answer = super().deliver(part)
        return r.Delivered() if isinstance(answer, r.Missing) else answer


@breaks("test_an_instance_that_has_ended_takes_nothing_from_outside")
class DeliversToClosedInstances(Lifecycle):
    def deliver(self, part):
        answer = super().deliver(part)
        return r.Delivered() if isinstance(answer, r.Ended) else answer


@breaks("test_a_parked_instance_is_offered_once_to_each_worker")
class OffersParkedAgain(Table):
    def claimable(self, worker, queues):
        return super().claimable(f"{worker}-{self._next_id}-again", queues)


@breaks("test_pages_neither_repeat_nor_leave_out")
class PagesByTime(MemoryInspector):
    async def list(self, query):
        page = await super().list(query)
        moments = None if page.cursor is None else page.cursor.partition("-")[0]
        return r.Page(instances=page.instances, cursor=moments)


@breaks("test_an_inbox_keeps_the_order_of_arrival")
class Backwards(Leases):
    def claim(self, row, worker):
        claim = super().claim(row, worker)
        return None if claim is None else msgspec.structs.replace(claim, inbox=claim.inbox[::-1])


@breaks("test_a_deadline_wakes_waiters_for_work")
class NoAlarm(Waiters):
    def set_alarm(self, when, ring):
        return


@breaks("test_commits_are_answered_one_by_one")
class AllOrNothing(MemoryStore):
    async def commit(self, parts):
        if any(isinstance(self._leases.held(part, part.epoch), r.Refused) for part in parts):
            return [r.Refused(reason="one of them is stale") for _ in parts]
        return await super().commit(parts)


@breaks("test_a_commit_appends_its_events_in_order")
class LosesNumbers(MemoryStore):
    async def read(self, execution, after=0):
        log = await super().read(execution, after)
        return [events.decode_event(entry.to_json().replace("9007199254740993", "9007199254740992")) for entry in log]


@breaks("test_older_executions_arrive_behind_the_current_one")
class AdoptsAtTheEnd(MemoryTransfer):
    def adopt_part(self, part):
        known = list(self._table.executions[part.entity_id])
        answer = super().adopt_part(part)
        self._table.executions[part.entity_id].sort(key=lambda execution: execution not in known)
        return answer


@breaks(
    "test_a_second_open_execution_is_refused_with_all_that_came_with_it",
    "test_two_open_executions_of_one_part_are_refused",
)
class AdoptsPiecemeal(MemoryTransfer):
    def adopt_part(self, part):
        pieces = [msgspec.structs.replace(part, copies=(copy,)) for copy in part.copies]
        return [super(AdoptsPiecemeal, self).adopt_part(piece) for piece in pieces][-1]


@breaks("test_adopting_again_changes_nothing_and_says_so")
class AdoptsAnew(MemoryTransfer):
    def adopt_part(self, part):
        for copy in part.copies:
            self._table.rows.pop(copy.instance.execution_id, None)
            self._table.executions[copy.instance.entity_id].clear()
        return super().adopt_part(part)


@breaks("test_an_adopted_retry_keeps_its_moment_and_its_attempt")
class AdoptsRetriesAtOnce(MemoryTransfer):
    def take_in(self, copy):
        at_once = tuple(msgspec.structs.replace(pending, visible_at=0) for pending in copy.activities)
        super().take_in(msgspec.structs.replace(copy, activities=at_once))


@breaks("test_an_adopted_instance_is_ready_once_though_nothing_came_for_it")
class AdoptsWithoutWaking(MemoryTransfer):
    def take_in(self, copy):
        super().take_in(copy)
        self._table.ready.pop(copy.instance.execution_id, None)


@breaks("test_nothing_is_removed_that_has_changed_since_it_was_copied", "test_each_removal_is_answered_by_itself")
class RemovesWhatHasChanged(MemoryTransfer):
    def remove_part(self, part):
        found = [row.copy() for row in self._table.executions_of(part.entity_id)]
        return super().remove_part(msgspec.structs.replace(part, copies=tuple(found)))


@breaks("test_executions_in_any_state_can_be_removed")
class RemovesTheNewestOnly(MemoryTransfer):
    def remove_part(self, part):
        older = self._table.executions[part.entity_id][:-1]
        kept = [self._table.rows[execution_id] for execution_id in older]
        answer = super().remove_part(part)
        for row in kept:
            self._table.add(row)
        return answer


@breaks("test_those_who_wait_for_what_was_removed_are_woken")
class RemovesInSilence(MemoryTransfer):
    def remove_part(self, part):
        answer = super().remove_part(part)
        self._table.touched.clear()
        return answer


@breaks("test_an_ended_execution_is_not_handed_out")
class RunsClosedExecutionsAgain(MemoryTransfer):
    def take_in(self, copy):
        super().take_in(copy)
        self._table.make_ready(self._table.rows[copy.instance.execution_id])


@breaks("test_a_copy_holds_all_but_the_leases")
class CopiesWithoutLeasedActivities(MemoryTransfer):
    async def copies(self, entity_id, run_id=None):
        found = await super().copies(entity_id, run_id)
        return [msgspec.structs.replace(copy, activities=copy.activities[1:]) for copy in found]


@breaks("test_what_is_forgotten_is_not_read_again")
class ReadsTheForgotten(MemoryStore):
    async def read(self, execution, after=0):
        return [entry for entry in await self.inspector.history(execution, forgotten=True) if entry.seq > after]


@breaks("test_tools_see_all_that_is_kept_in_order")
class DropsForgottenEntries(Commits):
    def commit(self, part):
        answer = super().commit(part)
        self._table.rows[part.execution_id].forgotten.clear()
        return answer


@breaks("test_a_refused_commit_forgets_nothing")
class ForgetsBeforeTheFence(Commits):
    def commit(self, part):
        self._table.rows[part.execution_id].forget(part.outcome.forgotten)
        return super().commit(part)


@breaks("test_a_refused_commit_forgets_nothing")
class DropsBeforeTheFence(Commits):
    def commit(self, part):
        self._table.rows[part.execution_id].drop(part.outcome.dropped)
        return super().commit(part)


@breaks("test_a_commit_drops_what_it_forgets_itself")
class DropsBeforeItForgets(Commits):
    def commit(self, part):
        row = self._table.rows[part.execution_id]
        answer = super().commit(changed(part, dropped=()))
        for mark in part.outcome.forgotten:
            if mark.seq in row.forgotten:
                row.log[mark.seq] = row.forgotten.pop(mark.seq)[1]
        row.drop(part.outcome.dropped)
        row.forget(part.outcome.forgotten)
        return answer


@breaks("test_a_commit_forgets_what_it_appends_itself")
class ForgetsOnlyTheOld(Commits):
    def commit(self, part):
        old = tuple(mark for mark in part.outcome.forgotten if mark.seq <= part.base_seq)
        return super().commit(changed(part, forgotten=old))


@breaks("test_forgetting_again_moves_to_the_new_location")
class KeepsTheFirstLocation(Commits):
    def commit(self, part):
        known = self._table.rows[part.execution_id].forgotten
        new = tuple(mark for mark in part.outcome.forgotten if mark.seq not in known)
        return super().commit(changed(part, forgotten=new))


class DropsOtherwise(Commits):
    """Drops what a rule of its own names."""

    def commit(self, part):
        answer = super().commit(changed(part, dropped=()))
        row = self._table.rows[part.execution_id]
        for span in part.outcome.dropped:
            for seq, (location, _) in list(row.forgotten.items()):
                if self._drops(span, location):
                    del row.forgotten[seq]
        return answer


@breaks("test_a_span_drops_exactly_the_locations_within_it", "test_a_location_is_dropped_with_all_below_it")
class DropsTheEndToo(DropsOtherwise):
    def _drops(self, span, location):
        return span.start <= location <= span.end


@breaks("test_a_span_drops_exactly_the_locations_within_it")
class DropsByText(DropsOtherwise):
    def _drops(self, span, location):
        return str(span.start) <= str(location) < str(span.end)


@breaks("test_a_span_drops_exactly_the_locations_within_it", "test_a_location_is_dropped_with_all_below_it")
class DropsNothingBelow(DropsOtherwise):
    def _drops(self, span, location):
        return span.start <= location < span.end and len(location.coordinates) <= len(span.start.coordinates)


@breaks("test_what_is_active_is_never_dropped")
class DropsTheActive(Commits):
    def commit(self, part):
        answer = super().commit(part)
        row = self._table.rows[part.execution_id]
        for entry in list(row.log.values()):
            if any(entry.location and span.start <= entry.location < span.end for span in part.outcome.dropped):
                del row.log[entry.seq]
        return answer


@breaks("test_only_the_log_that_is_named_forgets")
class DropsEntriesOfOtherLogs(Commits):
    def commit(self, part):
        answer = super().commit(part)
        for row in self._table.rows.values():
            row.drop(part.outcome.dropped)
        return answer


@breaks("test_a_log_whose_end_is_forgotten_can_be_terminated")
class TerminatesByActiveEntriesOnly(Lifecycle):
    def terminate(self, row, event):
        forgotten, row.forgotten = row.forgotten, {}
        super().terminate(row, event)
        row.forgotten = forgotten


@breaks("test_the_forgotten_moves_to_another_store_and_stays_so")
class AdoptsTheForgottenAsActive(MemoryTransfer):
    def take_in(self, copy):
        super().take_in(msgspec.structs.replace(copy, forgotten=()))


@breaks("test_the_forgotten_moves_to_another_store_and_stays_so")
class CopiesWithoutTheForgotten(MemoryTransfer):
    async def copies(self, entity_id, run_id=None):
        active = [
            self._table.rows[copy.instance.execution_id].log.values()
            for copy in await super().copies(entity_id, run_id)
        ]
        found = zip(await super().copies(entity_id, run_id), active, strict=True)
        return [msgspec.structs.replace(copy, log=tuple(log), forgotten=()) for copy, log in found]


@breaks("test_a_scheduled_instance_is_offered_from_its_moment_on")
class BeginsAtOnce(Lifecycle):
    def begin(self, started, paused=None):
        at_once = msgspec.structs.replace(started, begins_at=None, deferred=False)
        return super().begin(at_once, paused)


@breaks("test_a_signal_does_not_start_a_scheduled_instance", "test_a_successor_may_be_scheduled")
class SignalsBegin(Lifecycle):
    def hand_on(self, row, event):
        if row.instance.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.RUNNING)
        super().hand_on(row, event)


@breaks(
    "test_a_request_to_cancel_starts_a_scheduled_instance",
    "test_a_request_to_cancel_that_moves_starts_a_scheduled_instance",
    "test_a_deferred_instance_begins_on_request",
)
class NeverStartsScheduledInstances(Lifecycle):
    def hand_on(self, row, event):
        self._table.put(row, event)


@breaks("test_an_instance_that_has_begun_is_not_scheduled_again")
class SchedulesStartedInstancesAgain(Commits):
    def commit(self, part):
        row = self._table.rows[part.execution_id]
        if part.outcome.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.SCHEDULED)
        return super().commit(part)


@breaks("test_a_replacement_that_is_repeated_changes_nothing")
class ReplacesItself(Lifecycle):
    def create(self, part):
        newest = self._table.newest(part.started.entity_id)
        if part.replace is not None and newest is not None and not newest.instance.status.terminal:
            self.terminate(newest, part.replace)
        return super().create(part)


@breaks("test_a_replacement_ends_the_open_one_and_begins")
class ReplacesWithoutAnEnd(Lifecycle):
    def make_way(self, newest, part):
        return part.replace is not None or super().make_way(newest, part)


@breaks("test_an_open_execution_is_told_instead_of_a_new_one")
class DeliversOnlyToNewExecutions(Lifecycle):
    def make_way(self, newest, part):
        return super().make_way(newest, msgspec.structs.replace(part, inbox=()))


@breaks("test_what_follows_begins_only_after_that_very_execution")
class FollowsAnyExecution(Lifecycle):
    def make_way(self, newest, part):
        return part.follows is not None or super().make_way(newest, part)


@breaks("test_what_follows_the_open_is_refused_and_delivers_nothing")
class DeliversWithoutFollowing(Lifecycle):
    def make_way(self, newest, part):
        return super().make_way(newest, msgspec.structs.replace(part, follows=None))


@breaks("test_a_paused_instance_is_not_offered_and_shown_as_paused", "test_an_adopted_instance_stays_paused")
class IgnoresPauses(Lifecycle):
    def pause(self, row, event):
        self._table.put(row, event)
        return True


@breaks("test_activities_of_a_paused_instance_are_not_offered")
class OffersActivitiesOfPausedInstances(Table):
    def claimable_activities(self, queues):
        for execution_id, ref in self.queued:
            activity = self.rows[execution_id].activities[ref]
            if activity.request.queue in queues:
                yield activity


@breaks("test_a_commit_of_a_paused_instance_hands_nothing_out")
class DispatchesActivitiesOfPausedInstances(Activities):
    def dispatch(self, row, part):
        paused, row.paused = row.paused, None
        tasks = super().dispatch(row, part)
        row.paused = paused
        return tasks


@breaks(
    "test_a_commit_claims_the_activities_that_it_names",
    "test_a_commit_claims_the_activities_that_it_names_in_each_queue",
)
class ClaimsTheFirst(Activities):
    def dispatch(self, row, part):
        refs = [request.ref for request in part.outcome.activities]
        return super().dispatch(row, msgspec.structs.replace(part, eager=frozenset(refs[: len(part.eager)])))


@breaks("test_older_work_goes_first")
class PushesIn(Activities):
    def dispatch(self, row, part):
        waiting = dict(self._table.queued)
        self._table.queued.clear()
        tasks = super().dispatch(row, part)
        self._table.queued.update(waiting)
        return tasks


@breaks("test_older_work_of_one_queue_does_not_hold_up_another")
class WaitsForEveryQueue(Activities):
    def dispatch(self, row, part):
        queues = {request.queue for request in part.outcome.activities}
        older = any(True for _ in self._table.claimable_activities(tuple(queues)))
        return super().dispatch(row, msgspec.structs.replace(part, eager=frozenset()) if older else part)


@breaks("test_an_activity_that_a_commit_named_in_vain_is_not_released_by_its_worker")
class CountsClaimsOnly(Activities):
    def dispatch(self, row, part):
        tasks = super().dispatch(row, part)
        for ref in {request.ref for request in part.outcome.activities} - {task.request.ref for task in tasks}:
            row.activities[ref].epoch = 0
        return tasks


@breaks("test_pausing_and_resuming_again_change_nothing", "test_a_pause_can_be_widened_to_the_tree_but_not_narrowed")
class PausesPausedInstancesAgain(Lifecycle):
    def pause(self, row, event):
        row.paused = None
        return super().pause(row, event)


@breaks("test_terminating_ends_the_pause_too")
class KeepsThePauseOfTerminatedInstances(Lifecycle):
    def terminate(self, row, event):
        paused = row.paused
        super().terminate(row, event)
        row.paused = paused


@breaks("test_a_promise_is_settled_once", "test_a_message_settles_a_promise_once")
class SettlesAgain(Promises):
    def settle(self, promise_id, event, closing=None):
        answer = super().settle(promise_id, event, closing)
        for row in self._table.rows.values():
            for name, promise in row.promises.items():
                row.promises[name] = msgspec.structs.replace(promise, settled=False)
        return answer


@breaks("test_a_promise_is_settled_once")
class DoesNotSayWhichPromise(Table):
    def put(self, row, event):
        settles = isinstance(event, events.PromiseAnswer)
        super().put(row, msgspec.structs.replace(event, promise_id="") if settles else event)


@breaks("test_a_promise_can_be_looked_up_as_it_is_settled")
class LooksUpTheNewestOfAName(Promises):
    def named(self, row, name):
        return next((one for one in reversed(row.promises.values()) if one.name == name), None)


@breaks("test_a_retry_takes_the_promises_along")
class LeavesPromisesBehind(Effects):
    def begin_successor(self, row, succession, paused):
        for promise_id in row.promises:
            del self._table.promises[promise_id]
        row.promises.clear()
        super().begin_successor(row, succession, paused)


@breaks("test_a_continuation_leaves_the_promises_behind")
class TakesPromisesToAnotherRun(Effects):
    def begin_successor(self, row, succession, paused):
        run_id, row.instance = row.instance, msgspec.structs.replace(row.instance, run_id=succession.started.run_id)
        super().begin_successor(row, succession, paused)
        row.instance = run_id


@breaks("test_a_retry_takes_the_promises_along")
class OpensWhatIsSettled(Promises):
    def open(self, row, promise):
        row.promises.pop(promise.promise_id, None)
        super().open(row, promise)


@breaks("test_a_promise_that_is_made_again_can_be_settled_again")
class KeepsSettled(Promises):
    def open(self, row, promise):
        if promise.promise_id not in row.promises:
            super().open(row, promise)


@breaks("test_a_promise_that_is_closed_counts_as_settled")
class ForgetsClosedPromises(Promises):
    def close(self, row, promise_id):
        if row.promises.pop(promise_id, None) is not None:
            del self._table.promises[promise_id]


@breaks(
    "test_a_promise_of_an_ended_execution_counts_as_settled_until_the_purge",
    "test_a_promise_of_a_terminated_execution_counts_as_settled",
)
class SettlesPromisesOfEndedExecutions(Promises):
    def settle(self, promise_id, event, closing=None):
        row = self._table.rows.get(self._table.promises.get(promise_id, ""))
        answer = super().settle(promise_id, event, closing)
        if row is not None and row.instance.status.terminal:
            self._table.put(row, event)
            return row
        return answer


@breaks("test_a_promise_of_an_ended_execution_counts_as_settled_until_the_purge")
class KeepsPromisesAfterThePurge(Lifecycle):
    def purge(self, execution):
        row = self._table.find(execution)
        promises = dict.fromkeys(row.promises, execution.execution_id) if row else {}
        answer = super().purge(execution)
        if row is not None and isinstance(answer, r.Purged):
            self._table.rows[execution.execution_id] = row
            self._table.promises.update(promises)
        return answer


@breaks("test_a_retry_by_hand_takes_the_promises_along")
class LeavesPromisesToTheFailedAttempt(Lifecycle):
    def create(self, part):
        return super().create(msgspec.structs.replace(part, follows=None))


@breaks("test_an_adoption_cannot_redirect_a_promise")
class RedirectsPromises(MemoryTransfer):
    def holder_of(self, promise_id):
        return None


@breaks("test_a_refused_commit_begins_no_child")
class StartsChildrenBeforeTheFence(Commits):
    def commit(self, part):
        for request in part.outcome.children:
            self._effects.start_child(request, None)
        return super().commit(part)


@breaks("test_an_id_that_is_taken_refuses_the_child")
class AcceptsAnyExecutionAsTheChild(Effects):
    def start_child(self, request, paused, **taken):
        super().start_child(request, paused, **taken)
        return [request.created]


@breaks("test_an_entity_that_goes_on_cannot_be_started_as_a_child_of_itself")
class FreesTheIdOfAPredecessor(Effects):
    def start_child(self, request, paused, *, taken):
        return super().start_child(request, paused, taken=False)


@breaks("test_a_child_that_ran_for_the_request_answers_with_its_end", "test_the_last_execution_of_a_child_answers")
class ForgetsTheAnswerOfAChild(Effects):
    def start_child(self, request, paused, **taken):
        return super().start_child(request, paused, **taken)[:1]


@breaks("test_a_child_that_ran_for_the_request_answers_with_its_end", "test_a_repeated_child_request_changes_nothing")
class StartsAClosedChildAgain(Effects):
    def start_child(self, request, paused, **taken):
        newest = self._table.newest(request.started.entity_id)
        if newest is not None and newest.instance.status.terminal:
            again = msgspec.structs.replace(request.started, execution_id=f"again-{len(self._table.rows)}")
            self._lifecycle.begin(again)
        return super().start_child(request, paused, **taken)


@breaks("test_the_last_execution_of_a_child_answers")
class TheFirstExecutionOfAChildAnswers(Effects):
    def start_child(self, request, paused, **taken):
        rows = self._table.executions_of(request.started.entity_id)
        kept = [row.answer for row in rows]
        for row in rows[1:]:
            row.answer = None
        answers = super().start_child(request, paused, **taken)
        for row, answer in zip(rows, kept, strict=False):
            row.answer = answer
        return answers


@breaks("test_another_run_of_a_child_does_not_answer")
class AnyRunOfAChildAnswers(Effects):
    def start_child(self, request, paused, **taken):
        known = self._table.newest(request.started.entity_id)
        answers = super().start_child(request, paused, **taken)
        return answers if known is None or known.answer is None else [*answers[:1], known.answer]


@breaks("test_a_child_of_the_same_key_is_the_one_that_is_meant", "test_a_retried_child_has_the_key_still")
class IgnoresTheKeyOfAChild(Effects):
    def start_child(self, request, paused, **taken):
        parent = msgspec.structs.replace(request.started.parent, key=f"key-{len(self._table.rows)}")
        started = msgspec.structs.replace(request.started, parent=parent)
        return super().start_child(msgspec.structs.replace(request, started=started), paused, **taken)


@breaks("test_a_settlement_sent_by_the_commit_that_ends_an_attempt_reaches_the_next")
class ClosesBeforeItSends(Promises):
    def settle(self, promise_id, event, closing=None):
        return super().settle(promise_id, event)


@breaks("test_a_child_of_a_tree_that_is_paused_starts_paused")
class StartsChildrenOfPausedTreesUnpaused(Effects):
    def start_child(self, request, paused, **taken):
        return super().start_child(request, None)


@breaks("test_a_refused_commit_sends_nothing")
class SendsBeforeTheFence(Commits):
    def commit(self, part):
        for message in part.outcome.messages:
            self._effects.send_message(self._table.rows[part.execution_id], message)
        return super().commit(changed(part, messages=()))


@breaks("test_messages_are_answered_one_by_one", "test_a_message_to_oneself_comes_with_a_kept_lease")
class SendsBackwards(Effects):
    def send(self, row, outcome, paused):
        super().send(row, msgspec.structs.replace(outcome, messages=outcome.messages[::-1]), paused)


@breaks("test_an_unknown_promise_is_missing", "test_a_message_settles_a_promise_once")
class AnswersIdsWithoutARouteAsLate(Promises):
    def settle(self, promise_id, event, closing=None):
        routable = set(promise_id[:4]) <= set("0123456789abcdef")
        return super().settle(promise_id, event, closing) if routable else r.Settled()


@breaks("test_a_message_may_be_for_one_run_only")
class SendsToAnyRun(Effects):
    def send_message(self, sender, message):
        return super().send_message(sender, msgspec.structs.replace(message, run_id=None))


@breaks("test_a_message_may_be_for_the_child_of_one_call_only")
class SendsToAnyChild(Effects):
    def send_message(self, sender, message):
        return super().send_message(sender, msgspec.structs.replace(message, key=None))


@breaks("test_a_message_does_all_that_a_delivery_does")
class OnlyPutsMessages(Effects):
    def send_message(self, sender, message):
        target = self._table.newest(message.entity_id)
        self._table.put(target, message.event)
        return message.delivered


@breaks("test_what_comes_while_the_lease_is_kept_is_returned_by_the_commit")
class CommitsWithoutNewEntries(Commits):
    def commit(self, part):
        answer = super().commit(part)
        return msgspec.structs.replace(answer, inbox=()) if isinstance(answer, r.Committed) else answer


@breaks("test_a_strict_commit_is_refused_if_there_is_news")
class NeverStrict(Commits):
    def commit(self, part):
        return super().commit(changed(part, strict=False))


@breaks("test_what_is_unread_moves_along_in_order", "test_what_moved_is_told_once")
class MovesBackwards(Effects):
    def begin_successor(self, row, succession, paused):
        row.inbox = dict(reversed(row.inbox.items()))
        super().begin_successor(row, succession, paused)


@breaks("test_what_is_unread_moves_along_in_order")
class MovesEverything(Effects):
    def begin_successor(self, row, succession, paused):
        types = tuple(entry.event.type for _, entry in row.inbox.values())
        super().begin_successor(row, msgspec.structs.replace(succession, moves=types), paused)


@breaks("test_what_is_unread_moves_along_in_order")
class MovesConsumedEntries(Commits):
    def commit(self, part):
        consumed = () if part.outcome.successor is not None else part.outcome.consumed
        return super().commit(changed(part, consumed=consumed))


@breaks("test_a_refused_commit_leaves_no_successor")
class StartsSuccessorsBeforeTheFence(Commits):
    def commit(self, part):
        row = self._table.rows[part.execution_id]
        if part.outcome.successor is not None:
            self._effects.begin_successor(row, part.outcome.successor, row.paused)
        return super().commit(changed(part, successor=None))


@breaks("test_a_successor_is_paused_as_the_one_before_was")
class StartsSuccessorsUnpaused(Effects):
    def begin_successor(self, row, succession, paused):
        super().begin_successor(row, succession, None)


@breaks("test_the_first_reply_counts")
class TheLastReplyCounts(MemoryQueries):
    async def complete(self, parts):
        for result in parts:
            if result.query_id in self._rows:
                self._rows[result.query_id].result = None
        await super().complete(parts)


@breaks("test_a_query_is_with_one_worker_for_as_long_as_a_lease")
class OffersQueriesToSeveralWorkers(MemoryQueries):
    async def claim(self, worker, queues, limit):
        return list(self.claimable(queues))[:limit]


@breaks("test_a_query_is_given_up_at_its_moment")
class KeepsExpiredQueries(MemoryQueries):
    async def submit(self, parts):
        return await super().submit([msgspec.structs.replace(task, until=2**62) for task in parts])


@breaks("test_a_subscriber_that_begins_now_reads_nothing_older", "test_a_waiter_for_a_topic_is_woken_by_it_alone")
class TopicsBeginAnew(Topics):
    def newest(self, topic):
        return ""


@breaks("test_a_subscriber_reads_what_was_published_since")
class TopicsAreOne(Topics):
    def publish(self, publication, now):
        super().publish(msgspec.structs.replace(publication, topic="prices"), now)


@breaks("test_messages_are_kept_for_a_minute")
class KeepsMessages(Topics):
    def publish(self, publication, now):
        super().publish(publication, 0)


@breaks(
    "test_a_store_has_one_secret_of_its_own",
    "test_a_value_that_is_there_is_kept_by_a_put_if_absent",
    "test_of_many_that_put_if_absent_one_value_is_stored",
)
class PutsThoughPresent(MemoryValues):
    async def put_if_absent(self, key, value, *, expires_at=None):
        await self.put(key, value, expires_at=expires_at)
        return value


@breaks("test_a_worker_that_is_not_seen_any_more_expires")
class NeverExpiresWorkers(MemoryWorkers):
    def expire(self):
        pass


@breaks("test_a_worker_that_is_removed_is_gone_at_once")
class KeepsStoppedWorkers(MemoryWorkers):
    async def remove(self, worker_id):
        pass


@breaks("test_a_worker_that_announces_itself_again_is_renewed")
class ForgetsWhenWorkersStarted(MemoryWorkers):
    async def announce(self, worker, ttl):
        await self.remove(worker.worker_id)
        return await super().announce(worker, ttl)


@breaks("test_a_worker_is_listed_with_its_load_and_what_it_holds")
class ForgetsWhatWorkersHold(MemoryWorkers):
    async def announce(self, worker, ttl):
        return await super().announce(msgspec.structs.replace(worker, held=None), ttl)


@breaks("test_a_reader_that_begins_now_gets_what_is_committed_from_now_on")
class FeedBeginsAnew(MemoryFeed):
    async def now(self):
        return ""


@breaks(
    "test_the_feed_of_many_executions_has_every_event_once", "test_a_reader_that_continues_misses_and_repeats_nothing"
)
class FeedSkipsOne(MemoryFeed):
    async def read(self, query):
        page = await super().read(query)
        return msgspec.structs.replace(page, cursor=str(int(page.cursor) + 1))


@breaks("test_a_reader_that_goes_on_after_any_event_of_a_page_misses_and_repeats_nothing")
class FeedNamesOnlyEndsOfPages(MemoryFeed):
    async def read(self, query):
        page = await super().read(query)
        return msgspec.structs.replace(page, cursors=(page.cursor,) * len(page.entries))


@breaks("test_a_reader_up_to_a_cursor_gets_what_is_not_after_it")
class FeedReadsPastItsEnd(MemoryFeed):
    async def read(self, query):
        return await super().read(msgspec.structs.replace(query, until=""))


@breaks("test_a_purge_takes_events_out_of_the_feed_and_leaves_cursors_valid")
class PositionsUsedTwice(Table):
    def remove(self, row):
        super().remove(row)
        self.last_position = max((position for position, _, _ in self.logged_after(0)), default=0)


@breaks("test_the_feed_of_one_entity_or_type_has_only_its_events")
class FeedWithoutFilter(MemoryFeed):
    async def read(self, query):
        return await super().read(r.FeedQuery(after=query.after, limit=query.limit))


@breaks("test_a_value_expires_at_its_moment")
class NeverExpiresValues(MemoryValues):
    def expire(self):
        pass


@breaks("test_what_an_attempt_told_last_comes_to_the_next_one")
class ForgetsDetails(Activities):
    def complete(self, part):
        self._table.rows[part.execution_id].activities[part.event.ref].details = None
        return super().complete(part)


@breaks(
    "test_a_covered_activity_is_lost_with_its_instance", "test_a_released_instance_gives_its_covered_activities_back"
)
class LosesCoveredActivities(Table):
    def put_back(self, row, *, deliveries):
        for ref in [ref for ref, activity in row.activities.items() if activity.covered]:
            self.drop(row, ref)


@breaks(
    "test_a_commit_that_releases_leaves_its_activities_running",
    "test_a_terminated_instance_leaves_its_activities_running",
    "test_the_end_of_a_workflow_leaves_a_covered_activity_running",
)
class OffersWhatRuns(Table):
    def lease_alone(self, row, until=None):
        self.put_back(row, deliveries=1)


@breaks("test_a_heartbeat_gives_a_covered_activity_a_lease_of_its_own")
class LeavesItCovered(Table):
    def lease_one(self, activity, until=None):
        if until is not None:
            super().lease_one(activity, until)


@breaks(
    "test_the_first_answer_counts_even_if_another_worker_has_leased_the_activity",
    "test_a_paused_instance_that_is_released_offers_its_activities_when_it_is_resumed",
)
class RefusesLateAnswers(Activities):
    def _at_attempt(self, part):
        return None


@breaks("test_an_answer_of_an_earlier_attempt_is_refused")
class AcceptsAnyAttempt(Activities):
    def _at_attempt(self, part):
        row = self._table.find(part)
        return row.activities.get(part.event.ref)


@breaks("test_a_commit_schedules_the_next_attempt_of_a_covered_activity")
class RetriesByDefault(Activities):
    def retry(self, row, retries):
        super().retry(
            row,
            [msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, retry=None)) for one in retries],
        )


def without_start(pending):
    """Return an activity that has lost its prepared entry."""
    return msgspec.structs.replace(pending, request=msgspec.structs.replace(pending.request, starts=None))


@breaks(
    "test_a_free_instance_is_not_woken_by_the_claim_of_its_activity",
    "test_a_held_instance_is_not_woken_by_the_claim_of_its_activity",
)
class WakesForStarts(Table):
    def put_quietly(self, row, event):
        self.put(row, event)


@breaks(
    "test_the_claim_of_an_activity_puts_its_prepared_entry_into_the_inbox",
    "test_a_start_is_returned_together_with_the_next_entry_that_wakes",
)
class ForgetsStarts(Table):
    def put_quietly(self, row, event):
        pass


@breaks("test_a_start_is_returned_to_the_holder_with_the_next_entry_that_wakes")
class PutsStartsWhereNobodyLooks(Table):
    def put_quietly(self, row, event):
        super().put_quietly(row, event)
        number, (_, entry) = row.inbox.popitem()
        row.inbox[number] = (row.wake, entry)


@breaks("test_starts_between_other_entries_keep_their_places")
class PutsStartsFirst(Table):
    def put_quietly(self, row, event):
        known, row.inbox = row.inbox, {}
        super().put_quietly(row, event)
        row.inbox |= known


@breaks("test_every_delivery_of_an_activity_has_an_entry_with_its_number")
class StartsOnce(Table):
    def put_quietly(self, row, event):
        if event.attempt == 1:
            super().put_quietly(row, event)


@breaks("test_an_activity_that_a_commit_claims_has_no_entry")
class StartsWhatACommitClaims(Activities):
    def dispatch(self, row, part):
        tasks = super().dispatch(row, part)
        for task in tasks:
            if task.request.starts is not None:
                self._table.put_quietly(row, task.request.starts)
        return tasks


@breaks("test_a_covered_activity_keeps_its_prepared_entry_wherever_it_goes")
class GivesBackWithoutStarts(Table):
    def put_back(self, row, *, deliveries):
        for activity in row.activities.values():
            if activity.covered:
                activity.request = msgspec.structs.replace(activity.request, starts=None)
        super().put_back(row, deliveries=deliveries)


@breaks("test_a_further_attempt_that_a_commit_schedules_begins_with_an_entry")
class RetriesWithoutStarts(Activities):
    def retry(self, row, retries):
        super().retry(row, [without_start(one) for one in retries])


@breaks("test_prepared_entries_and_starts_move_with_their_execution")
class AdoptsWithoutStarts(MemoryTransfer):
    def take_in(self, copy):
        super().take_in(msgspec.structs.replace(copy, activities=tuple(map(without_start, copy.activities))))


@breaks("test_a_creation_brings_its_first_commit", "test_a_creation_whose_first_commit_releases_leaves_a_sleeper")
class IgnoresTheFirstCommit(MemoryStore):
    def _create(self, part):
        return super()._create(msgspec.structs.replace(part, first=None))


@breaks("test_an_activity_that_was_started_once_is_not_withdrawn")
class WithdrawsStartedActivities(Activities):
    def withdraw(self, row, withdrawal):
        super().withdraw(row, msgspec.structs.replace(withdrawal, never_started=False))


@breaks("test_a_log_that_grows_wakes_its_waiters")
class GrowsWithoutWaking(Table):
    def note_growth(self, row):
        self.touched.add(row.instance.execution_id)


@breaks("test_children_and_trees_are_listed")
class ListsWithoutTheParentFilter(MemoryInspector):
    async def list(self, query):
        return await super().list(msgspec.structs.replace(query, parent=None))


@breaks("test_a_list_can_show_the_newest_execution_of_each_entity")
class ListsTheNewestThatFits(MemoryInspector):
    async def list(self, query):
        page = await super().list(msgspec.structs.replace(query, newest_only=False))
        first = {instance.entity_id: instance for instance in reversed(page.instances)}
        found = tuple(one for one in page.instances if not query.newest_only or one is first[one.entity_id])
        return r.Page(instances=found, cursor=page.cursor)


@breaks("test_a_list_can_be_filtered_by_the_type_of_failure")
class ForgetsTheFailure(Commits):
    def commit(self, part):
        row = self._table.rows[part.execution_id]
        answer = super().commit(part)
        row.instance = msgspec.structs.replace(row.instance, failure=part.outcome.failure)
        return answer


@breaks("test_the_last_heartbeat_is_kept_with_its_moment")
class ForgetsHeartbeats(Activities):
    def complete(self, part):
        self._table.rows[part.execution_id].activities[part.event.ref].heartbeat_at = None
        return super().complete(part)


@breaks("test_what_waits_in_the_inbox_is_shown_in_order")
class EmptiesTheInboxWhenRead(MemoryInspector):
    async def open_work(self, execution):
        work = await super().open_work(execution)
        self._table.rows[execution.execution_id].inbox.clear()
        return work


@breaks("test_an_activity_shows_who_holds_it_and_until_when")
class ShowsFormerHolders(Leases):
    def release(self, part):
        answer = super().release(part)
        self._table.rows[part.lease.execution_id].activities[part.lease.ref].leased_until = self._table.clock.now()
        return answer


@breaks("test_only_a_complete_execution_can_be_reserved")
class ReservesOpenRuns(MemoryTransfer):
    def reserve_part(self, part):
        row = self._table.find(part)
        if row is None or row.instance.deactivated:
            return super().reserve_part(part)
        row.instance = msgspec.structs.replace(row.instance, deactivated=True)
        answer = super().reserve_part(part)
        row.instance = msgspec.structs.replace(row.instance, deactivated=False)
        return answer


@breaks("test_a_reservation_must_follow_the_last_entry")
class ReservesTwice(MemoryTransfer):
    def reserve_part(self, part):
        row = self._table.find(part)
        seq = part.event.seq if row is None else row.instance.last_seq + 1
        event = msgspec.structs.replace(part.event, seq=seq)
        return super().reserve_part(msgspec.structs.replace(part, event=event))


@breaks("test_a_reservation_is_the_last_entry_of_a_complete_log")
class WakesForReservations(MemoryTransfer):
    def reserve_part(self, part):
        answer = super().reserve_part(part)
        if isinstance(answer, r.Reserved):
            row = self._table.rows[part.execution_id]
            row.wake += 1
            self._table.make_ready(row)
        return answer


@breaks("test_of_an_archived_execution_only_its_row_stays")
class ArchivesAndKeepsTheLog(MemoryTransfer):
    def archive_part(self, part):
        logs = {row.instance.execution_id: row.log for row in self._table.executions_of(part.entity_id)}
        answer = super().archive_part(part)
        for copy in part.copies if isinstance(answer, r.Archived) else ():
            self._table.rows[copy.instance.execution_id].log = logs[copy.instance.execution_id]
        return answer


@breaks("test_nothing_is_archived_that_has_changed_or_is_not_complete")
class ArchivesWhatHasChanged(MemoryTransfer):
    def archive_part(self, part):
        named = [copy.instance.execution_id for copy in part.copies]
        now = tuple(row.copy() for row in self._table.executions_of(part.entity_id))
        copies = tuple(copy for copy in now if copy.instance.execution_id in named)
        return super().archive_part(msgspec.structs.replace(part, copies=copies))


@breaks("test_an_archived_execution_gets_back_its_log")
class RestoresNothing(MemoryTransfer):
    def adopt_part(self, part):
        here = {row.instance.execution_id for row in self._table.executions_of(part.entity_id)}
        copies = [
            msgspec.structs.replace(copy, log=()) if copy.instance.execution_id in here else copy
            for copy in part.copies
        ]
        return super().adopt_part(msgspec.structs.replace(part, copies=tuple(copies)))


@breaks("test_an_older_copy_does_not_replace_an_archived_execution")
class RestoresOldCopies(MemoryTransfer):
    def adopt_part(self, part):
        for copy in part.copies:
            row = self._table.find(copy.instance)
            if row is not None and row.instance.archived is not None and copy.log:
                self._forget(row)
        return super().adopt_part(part)


@breaks("test_an_archived_execution_moves_to_another_store_without_its_log")
class AdoptsWithoutTheArchive(MemoryTransfer):
    def take_in(self, copy):
        instance = msgspec.structs.replace(copy.instance, archived=None)
        super().take_in(msgspec.structs.replace(copy, instance=instance))


@breaks("test_archived_executions_are_listed_apart_from_complete_ones")
class ListsArchivedExecutionsAsComplete(MemoryInspector):
    async def ended(self, query):
        both = [
            await super(type(self), self).ended(msgspec.structs.replace(query, archived=one)) for one in (False, True)
        ]
        found = sorted((*both[0], *both[1]), key=lambda instance: (instance.closed_at, instance.execution_id))
        return found[: query.limit]


@breaks("test_the_tags_of_a_commit_take_the_place_of_those_before", "test_changed_tags_move_to_another_store")
class ListsByTheTagsOfTheStart(Commits):
    def commit(self, part):
        return super().commit(changed(part, tags=None))


@breaks("test_the_tags_of_a_commit_take_the_place_of_those_before")
class ListsByFormerTagsToo(Commits):
    def commit(self, part):
        known, tags = self._table.rows[part.execution_id].instance.tags, part.outcome.tags
        return super().commit(changed(part, tags=None if tags is None else known | tags))


def changed(part, **fields):
    """Return a commit whose outcome says something else."""
    return msgspec.structs.replace(part, outcome=msgspec.structs.replace(part.outcome, **fields))


def cases_of(contract):
    """Return the cases of a contract by name."""
    return {name: case for name, case in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")}


def opened(kind, clock):
    """Return a memory store of this kind, or with this kind in the location of the part that it derives from."""
    if issubclass(kind, MemoryStore):
        return kind(clock, lease=LEASE)
    part = next(name for base in kind.__mro__ for name, known in vars(memory).items() if known is base)
    with patch.object(memory, part, kind):
        return MemoryStore(clock, lease=LEASE)


def suite(contract, kind):
    """Return the contract for stores of this kind."""

    @asynccontextmanager
    async def open_store(self, clock):
        yield opened(kind, clock)

    return type("Suite", (contract,), {"open_store": open_store, "limit": 0.05})()


async def failed(contract, kind, name):
    """Whether a case finds fault with a store."""
    case = getattr(suite(contract, kind), name)
    try:
        await case()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("name", SABOTAGE)
async def test_a_sabotaged_store_fails_its_case(name):
    kind, cases = SABOTAGE[name]
    for case in cases:
        assert await failed(StoreContract, kind, case), f"{case} finds no fault with {name}"
        assert not await failed(StoreContract, MemoryStore, case), f"{case} finds fault with the store as it is"


def test_every_case_says_what_it_expects():
    for name, case in cases_of(StoreContract).items():
        assert case.__doc__, name
        assert inspect.iscoroutinefunction(case), name


def test_no_case_hides_another():
    names = [name for base in StoreContract.__mro__ for name in vars(base) if name.startswith("test_")]
    assert len(names) == len(set(names))


def test_every_numbered_case_is_there():
    stores = {(case.__doc__ or "").partition(":")[0] for case in cases_of(StoreContract).values()}
    assert {f"B{number:02}" for number in range(1, 20)} <= stores
