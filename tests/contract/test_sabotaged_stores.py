"""The suite has teeth: a store with any one promise broken is found out, by the case that is about that promise."""

import inspect
from contextlib import asynccontextmanager

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.testing.contract import LEASE, StoreContract

SABOTAGE = {}


def breaks(*cases):
    """Put a sabotaged store into the table, with the cases that must find it out."""

    def register(kind):
        SABOTAGE[kind.__name__] = (kind, cases)
        return kind

    return register


@breaks("test_a_worker_that_lost_its_lease_is_refused", "test_the_same_claim_commits_only_once")
class NoEpochForInstances(MemoryStore):
    def _held(self, execution_id, epoch):
        row = self._rows.get(execution_id)
        return r.Refused(reason="there is no such instance") if row is None else row


@breaks("test_an_activity_that_lost_its_lease_is_refused")
class NoEpochForActivities(MemoryStore):
    def _holder(self, lease):
        row = self._rows.get(lease.execution_id)
        activity = None if row is None or lease.ref is None else row.activities.get(lease.ref)
        return super()._holder(lease) if activity is None else activity


@breaks(
    "test_a_final_release_puts_an_instance_aside_until_it_is_revived",
    "test_a_final_release_puts_an_activity_aside_until_it_is_revived",
)
class NoFinalRelease(MemoryStore):
    def _release(self, part):
        return super()._release(msgspec.structs.replace(part, final=False))


@breaks(
    "test_instances_are_claimed_in_the_order_in_which_they_became_ready",
    "test_instances_that_are_always_due_do_not_starve_a_new_one",
)
class OldestFirst(MemoryStore):
    def _claimable(self, worker, queues):
        order = list(self._rows)
        return iter(sorted(super()._claimable(worker, queues), key=lambda row: order.index(row.instance.execution_id)))


@breaks("test_activities_are_claimed_in_the_order_in_which_they_became_available")
class ActivitiesByName(MemoryStore):
    def _claimable_activities(self, queues):
        return iter(sorted(super()._claimable_activities(queues), key=lambda activity: activity.execution_id))


@breaks("test_a_commit_from_another_state_is_refused")
class NoBaseSeq(MemoryStore):
    def _commit(self, part):
        row = self._rows[part.execution_id]
        return super()._commit(msgspec.structs.replace(part, base_seq=row.instance.last_seq))


@breaks("test_what_comes_while_an_instance_is_held_makes_it_ready_after_its_release")
class NoWakeCounter(MemoryStore):
    def _let_go(self, row, *, ready):
        super()._let_go(row, ready=ready and row.epoch == 0)


@breaks("test_nothing_wakes_an_instance_for_which_nothing_came")
class AlwaysReady(MemoryStore):
    def _let_go(self, row, *, ready):
        super()._let_go(row, ready=True)


@breaks("test_a_second_answer_is_refused")
class SecondAnswers(MemoryStore):
    def _complete(self, part):
        answer = super()._complete(part)
        if isinstance(answer, r.Refused) and part.execution_id in self._rows:
            self._put(self._rows[part.execution_id], part.event)
            return r.Accepted()
        return answer


@breaks("test_entries_are_consumed_by_id")
class ConsumedByRange(MemoryStore):
    def _commit(self, part):
        inbox = self._rows[part.execution_id].inbox
        upto = tuple(key for key in inbox if key <= max(part.outcome.consumed, default=0))
        outcome = msgspec.structs.replace(part.outcome, consumed=upto)
        return super()._commit(msgspec.structs.replace(part, outcome=outcome))


@breaks("test_lost_instances_come_back_in_every_queue", "test_all_queues_are_served_by_one_claim")
class OnlyTheFirstQueue(MemoryStore):
    def _claimable(self, worker, queues):
        return super()._claimable(worker, queues[:1])


@breaks("test_lost_activities_come_back_in_every_queue")
class OnlyTheFirstQueueOfLostActivities(MemoryStore):
    def _claimable_activities(self, queues):
        for activity in super()._claimable_activities(queues):
            if activity.deliveries == 0 or activity.request.queue == queues[0]:
                yield activity


@breaks("test_an_activity_that_kills_its_workers_is_put_aside")
class NoDeadLetters(MemoryStore):
    def _claim_activity(self, activity):
        activity.deliveries = min(activity.deliveries, 1)
        return super()._claim_activity(activity)


@breaks("test_a_graceful_release_is_no_failed_delivery")
class EveryReleaseCounts(MemoryStore):
    def _release(self, part):
        return super()._release(msgspec.structs.replace(part, failed="counted"))


@breaks("test_a_retry_is_invisible_until_its_moment")
class RetriesAtOnce(MemoryStore):
    def _schedule(self, row, activity):
        activity.visible_at = self._clock.now()
        super()._schedule(row, activity)


@breaks("test_a_deadline_wakes_an_instance_at_its_moment")
class NoDeadlines(MemoryStore):
    def _bring_up_instance(self, row, now):
        if row.leased_until is not None:
            super()._bring_up_instance(row, now)


@breaks("test_a_claimed_activity_of_an_ended_workflow_runs_on")
class WithdrawsWhatRuns(MemoryStore):
    def _commit(self, part):
        for withdrawal in part.outcome.withdrawals:
            activity = self._rows[part.execution_id].activities.get(withdrawal.ref)
            if activity is not None:
                activity.leased_until = None
        return super()._commit(part)


@breaks("test_a_creation_that_is_repeated_changes_nothing")
class CreatesAnew(MemoryStore):
    def _create(self, part):
        number = f"{part.started.run_id}/{len(self._rows)}"
        return super()._create(
            msgspec.structs.replace(part, started=msgspec.structs.replace(part.started, run_id=number))
        )


@breaks("test_purging_an_old_execution_leaves_the_current_one_alone")
class PurgesThePointer(MemoryStore):
    def _purge(self, execution_id):
        row = self._rows.get(execution_id)
        answer = super()._purge(execution_id)
        if isinstance(answer, r.Purged):
            self._current.pop(row.instance.entity_id, None)
        return answer


@breaks(
    "test_ended_executions_are_listed_in_the_order_in_which_they_ended",
    "test_executions_that_ended_at_one_moment_are_listed_once_each",
)
class ListsEndedExecutionsAnyhow(MemoryStore):
    async def ended(self, query):
        return [row.instance for row in self._rows.values() if query.fits(row.instance)][::-1][: query.limit]


@breaks("test_a_pass_removes_what_ended_before_the_moment")
class ListsTheYoungToo(MemoryStore):
    async def ended(self, query):
        return await super().ended(msgspec.structs.replace(query, before=2**62))


@breaks("test_ended_executions_are_listed_in_the_order_in_which_they_ended")
class ListsWhatIsAtWork(MemoryStore):
    async def ended(self, query):
        for row in self._rows.values():
            row.instance = msgspec.structs.replace(row.instance, deactivated=row.instance.status.terminal)
        return await super().ended(query)


@breaks("test_a_signal_to_nobody_is_missing")
class DeliversToNobody(MemoryStore):
    def _deliver(self, part):
        answer = super()._deliver(part)
        return r.Delivered() if isinstance(answer, r.Missing) else answer


@breaks("test_an_instance_that_has_ended_takes_nothing_from_outside")
class DeliversToTheDead(MemoryStore):
    def _deliver(self, part):
        answer = super()._deliver(part)
        return r.Delivered() if isinstance(answer, r.Ended) else answer


@breaks("test_a_parked_instance_is_offered_once_to_each_worker")
class OffersParkedAgain(MemoryStore):
    def _claimable(self, worker, queues):
        return super()._claimable(f"{worker}-{self._next_id}-again", queues)


@breaks("test_pages_neither_repeat_nor_leave_out")
class PagesByTime(MemoryStore):
    async def list(self, query):
        page = await super().list(query)
        moments = None if page.cursor is None else page.cursor.partition("-")[0]
        return r.Page(instances=page.instances, cursor=moments)


@breaks("test_an_inbox_keeps_the_order_of_arrival")
class Backwards(MemoryStore):
    def _claim(self, row):
        claim = super()._claim(row)
        return None if claim is None else msgspec.structs.replace(claim, inbox=claim.inbox[::-1])


@breaks("test_a_deadline_wakes_whoever_waits_for_work")
class NoAlarm(MemoryStore):
    def _set_alarm(self):
        return


@breaks("test_commits_are_answered_one_by_one")
class AllOrNothing(MemoryStore):
    async def commit(self, parts):
        if any(isinstance(self._held(part.execution_id, part.epoch), r.Refused) for part in parts):
            return [r.Refused(reason="one of them is stale") for _ in parts]
        return await super().commit(parts)


@breaks("test_a_commit_appends_its_events_in_order")
class LosesNumbers(MemoryStore):
    async def read(self, execution_id, after=0):
        log = await super().read(execution_id, after)
        return [events.decode_event(entry.to_json().replace("9007199254740993", "9007199254740992")) for entry in log]


@breaks("test_older_executions_arrive_behind_the_current_one")
class AdoptsAtTheEnd(MemoryStore):
    def _adopt(self, part):
        order = {copy.instance.entity_id: list(self._current[copy.instance.entity_id]) for copy in part.copies}
        answer = super()._adopt(part)
        for entity_id, known in order.items():
            self._current[entity_id].sort(key=lambda execution: execution not in known)
        return answer


@breaks("test_a_second_open_execution_is_refused_with_all_that_came_with_it")
class AdoptsPiecemeal(MemoryStore):
    def _adopt(self, part):
        return [super(AdoptsPiecemeal, self)._adopt(r.Adoption(copies=(copy,))) for copy in part.copies][-1]


@breaks("test_adopting_again_changes_nothing_and_says_so")
class AdoptsAnew(MemoryStore):
    def _adopt(self, part):
        for copy in part.copies:
            self._rows.pop(copy.instance.execution_id, None)
            self._current[copy.instance.entity_id].clear()
        return super()._adopt(part)


@breaks("test_an_adopted_retry_keeps_its_moment_and_its_attempt")
class AdoptsRetriesAtOnce(MemoryStore):
    def _take_in(self, copy):
        at_once = tuple(msgspec.structs.replace(pending, visible_at=0) for pending in copy.activities)
        super()._take_in(msgspec.structs.replace(copy, activities=at_once))


@breaks("test_an_adopted_instance_is_ready_once_though_nothing_came_for_it")
class AdoptsAsleep(MemoryStore):
    def _take_in(self, copy):
        super()._take_in(copy)
        self._ready.pop(copy.instance.execution_id, None)


@breaks("test_an_ended_execution_is_not_handed_out")
class RunsTheEndedAgain(MemoryStore):
    def _take_in(self, copy):
        super()._take_in(copy)
        self._make_ready(self._rows[copy.instance.execution_id])


@breaks("test_a_copy_holds_all_but_the_leases")
class CopiesWithoutTheHeld(MemoryStore):
    async def copies(self, entity_id, run_id=None):
        found = await super().copies(entity_id, run_id)
        return [msgspec.structs.replace(copy, activities=copy.activities[1:]) for copy in found]


@breaks("test_what_is_forgotten_is_not_read_again")
class ReadsTheForgotten(MemoryStore):
    async def read(self, execution_id, after=0):
        return [entry for entry in await self.history(execution_id, forgotten=True) if entry.seq > after]


@breaks("test_tools_see_all_that_is_kept_in_order")
class ForgetsForGood(MemoryStore):
    def _commit(self, part):
        answer = super()._commit(part)
        self._rows[part.execution_id].forgotten.clear()
        return answer


@breaks("test_a_refused_commit_forgets_nothing")
class ForgetsBeforeTheFence(MemoryStore):
    def _commit(self, part):
        self._rows[part.execution_id].forget(part.outcome.forgotten)
        return super()._commit(part)


@breaks("test_a_refused_commit_forgets_nothing")
class DropsBeforeTheFence(MemoryStore):
    def _commit(self, part):
        self._rows[part.execution_id].drop(part.outcome.dropped)
        return super()._commit(part)


@breaks("test_a_commit_drops_what_it_forgets_itself")
class DropsBeforeItForgets(MemoryStore):
    def _commit(self, part):
        row = self._rows[part.execution_id]
        answer = super()._commit(changed(part, dropped=()))
        for mark in part.outcome.forgotten:
            if mark.seq in row.forgotten:
                row.log[mark.seq] = row.forgotten.pop(mark.seq)[1]
        row.drop(part.outcome.dropped)
        row.forget(part.outcome.forgotten)
        return answer


@breaks("test_a_commit_forgets_what_it_appends_itself")
class ForgetsOnlyTheOld(MemoryStore):
    def _commit(self, part):
        old = tuple(mark for mark in part.outcome.forgotten if mark.seq <= part.base_seq)
        return super()._commit(changed(part, forgotten=old))


@breaks("test_forgetting_again_moves_to_the_new_place")
class KeepsTheFirstPlace(MemoryStore):
    def _commit(self, part):
        known = self._rows[part.execution_id].forgotten
        new = tuple(mark for mark in part.outcome.forgotten if mark.seq not in known)
        return super()._commit(changed(part, forgotten=new))


class DropsOtherwise(MemoryStore):
    """Drops what a rule of its own names."""

    def _commit(self, part):
        answer = super()._commit(changed(part, dropped=()))
        row = self._rows[part.execution_id]
        for span in part.outcome.dropped:
            for seq, (place, _) in list(row.forgotten.items()):
                if self._drops(span, place):
                    del row.forgotten[seq]
        return answer


@breaks("test_a_span_drops_exactly_the_places_within_it", "test_a_place_is_dropped_with_all_below_it")
class DropsTheEndToo(DropsOtherwise):
    def _drops(self, span, place):
        return span.start <= place <= span.end


@breaks("test_a_span_drops_exactly_the_places_within_it")
class DropsByText(DropsOtherwise):
    def _drops(self, span, place):
        return str(span.start) <= str(place) < str(span.end)


@breaks("test_a_span_drops_exactly_the_places_within_it", "test_a_place_is_dropped_with_all_below_it")
class DropsNothingBelow(DropsOtherwise):
    def _drops(self, span, place):
        return span.start <= place < span.end and len(place.coordinates) <= len(span.start.coordinates)


@breaks("test_what_is_active_is_never_dropped")
class DropsTheActive(MemoryStore):
    def _commit(self, part):
        answer = super()._commit(part)
        row = self._rows[part.execution_id]
        for entry in list(row.log.values()):
            if any(entry.location and span.start <= entry.location < span.end for span in part.outcome.dropped):
                del row.log[entry.seq]
        return answer


@breaks("test_only_the_log_that_is_named_forgets")
class DropsOfEverybody(MemoryStore):
    def _commit(self, part):
        answer = super()._commit(part)
        for row in self._rows.values():
            row.drop(part.outcome.dropped)
        return answer


@breaks("test_a_log_whose_end_is_forgotten_can_be_terminated")
class TerminatesByTheActive(MemoryStore):
    def _terminate(self, row, event):
        forgotten, row.forgotten = row.forgotten, {}
        super()._terminate(row, event)
        row.forgotten = forgotten


@breaks("test_the_forgotten_moves_to_another_store_and_stays_so")
class AdoptsTheForgottenAsActive(MemoryStore):
    def _take_in(self, copy):
        super()._take_in(msgspec.structs.replace(copy, forgotten=()))


@breaks("test_the_forgotten_moves_to_another_store_and_stays_so")
class CopiesWithoutTheForgotten(MemoryStore):
    async def copies(self, entity_id, run_id=None):
        active = [await self.read(copy.instance.execution_id) for copy in await super().copies(entity_id, run_id)]
        found = zip(await super().copies(entity_id, run_id), active, strict=True)
        return [msgspec.structs.replace(copy, log=tuple(log), forgotten=()) for copy, log in found]


@breaks("test_what_is_put_off_is_offered_from_its_moment_on")
class BeginsAtOnce(MemoryStore):
    def _begin(self, started, paused=None):
        at_once = msgspec.structs.replace(started, begins_at=None, deferred=False)
        return super()._begin(at_once, paused)


@breaks("test_a_signal_does_not_begin_what_is_put_off", "test_a_successor_may_be_put_off")
class SignalsBegin(MemoryStore):
    def _hand_on(self, row, event):
        if row.instance.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.RUNNING)
        super()._hand_on(row, event)


@breaks(
    "test_a_request_to_cancel_takes_out_what_is_put_off",
    "test_a_request_to_cancel_that_moves_takes_out_what_is_put_off",
    "test_what_is_deferred_begins_when_somebody_says_so",
)
class NothingBegins(MemoryStore):
    def _hand_on(self, row, event):
        self._put(row, event)


@breaks("test_what_was_begun_meanwhile_is_not_put_off_again")
class PutsOffAgain(MemoryStore):
    def _commit(self, part):
        row = self._rows[part.execution_id]
        if part.outcome.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.SCHEDULED)
        return super()._commit(part)


@breaks("test_a_replacement_that_is_repeated_changes_nothing")
class ReplacesItself(MemoryStore):
    def _create(self, part):
        newest = self._newest(part.started.entity_id)
        if part.replace is not None and newest is not None and not newest.instance.status.terminal:
            self._terminate(newest, part.replace)
        return super()._create(part)


@breaks("test_a_replacement_ends_the_open_one_and_begins")
class ReplacesWithoutAnEnd(MemoryStore):
    def _makes_way(self, newest, part):
        return part.replace is not None or super()._makes_way(newest, part)


@breaks("test_an_open_execution_is_told_instead_of_a_new_one")
class TellsOnlyTheNew(MemoryStore):
    def _makes_way(self, newest, part):
        return super()._makes_way(newest, msgspec.structs.replace(part, inbox=()))


@breaks("test_what_follows_begins_only_after_that_very_execution")
class FollowsAnybody(MemoryStore):
    def _makes_way(self, newest, part):
        return part.follows is not None or super()._makes_way(newest, part)


@breaks("test_what_follows_the_open_is_refused_and_tells_nobody")
class TellsWhatIsNotFollowed(MemoryStore):
    def _makes_way(self, newest, part):
        return super()._makes_way(newest, msgspec.structs.replace(part, follows=None))


@breaks("test_a_paused_instance_is_offered_to_nobody_and_shown_as_paused", "test_an_adopted_instance_stays_halted")
class NeverHalts(MemoryStore):
    def _pause(self, row, event):
        self._put(row, event)
        return True


@breaks("test_activities_of_a_paused_instance_are_offered_to_nobody")
class OffersHaltedActivities(MemoryStore):
    def _claimable_activities(self, queues):
        for execution_id, ref in self._queued:
            activity = self._rows[execution_id].activities[ref]
            if activity.request.queue in queues:
                yield activity


@breaks("test_a_commit_of_a_paused_instance_hands_nothing_out")
class HandsOutWhatIsHalted(MemoryStore):
    def _dispatch(self, row, part):
        paused, row.paused = row.paused, None
        tasks = super()._dispatch(row, part)
        row.paused = paused
        return tasks


@breaks("test_pausing_and_resuming_again_change_nothing", "test_a_pause_can_be_widened_to_the_tree_but_not_narrowed")
class HaltsAgainAndAgain(MemoryStore):
    def _pause(self, row, event):
        row.paused = None
        return super()._pause(row, event)


@breaks("test_terminating_ends_the_pause_too")
class HaltsTheDead(MemoryStore):
    def _terminate(self, row, event):
        paused = row.paused
        super()._terminate(row, event)
        row.paused = paused


@breaks("test_a_promise_is_settled_once", "test_a_message_settles_a_promise_once")
class SettlesAgain(MemoryStore):
    def _settle(self, promise_id, event, ending=None):
        answer = super()._settle(promise_id, event, ending)
        for row in self._rows.values():
            for name, promise in row.promises.items():
                row.promises[name] = msgspec.structs.replace(promise, settled=False)
        return answer


@breaks("test_a_promise_is_settled_once")
class DoesNotSayWhichPromise(MemoryStore):
    def _put(self, row, event):
        settles = isinstance(event, events.PromiseAnswer)
        super()._put(row, msgspec.structs.replace(event, promise_id="") if settles else event)


@breaks("test_a_promise_can_be_looked_up_as_it_is_settled")
class LooksUpTheNewestOfAName(MemoryStore):
    def _promise_named(self, row, name):
        return next((one for one in reversed(row.promises.values()) if one.name == name), None)


@breaks("test_a_retry_takes_the_promises_along")
class LeavesPromisesBehind(MemoryStore):
    def _succeed(self, row, succession, paused):
        for promise_id in row.promises:
            del self._promises[promise_id]
        row.promises.clear()
        super()._succeed(row, succession, paused)


@breaks("test_a_continuation_leaves_the_promises_behind")
class TakesPromisesToAnotherRun(MemoryStore):
    def _succeed(self, row, succession, paused):
        run_id, row.instance = row.instance, msgspec.structs.replace(row.instance, run_id=succession.started.run_id)
        super()._succeed(row, succession, paused)
        row.instance = run_id


@breaks("test_a_retry_takes_the_promises_along")
class OpensWhatIsSettled(MemoryStore):
    def _open(self, row, promise):
        row.promises.pop(promise.promise_id, None)
        super()._open(row, promise)


@breaks("test_a_promise_that_is_made_again_can_be_settled_again")
class KeepsSettled(MemoryStore):
    def _open(self, row, promise):
        if promise.promise_id not in row.promises:
            super()._open(row, promise)


@breaks("test_a_promise_that_is_closed_counts_as_settled")
class ForgetsClosedPromises(MemoryStore):
    def _close(self, row, promise_id):
        if row.promises.pop(promise_id, None) is not None:
            del self._promises[promise_id]


@breaks(
    "test_a_promise_of_an_ended_execution_counts_as_settled_until_the_purge",
    "test_a_promise_of_a_terminated_execution_counts_as_settled",
)
class SettlesPromisesOfEndedExecutions(MemoryStore):
    def _settle(self, promise_id, event, ending=None):
        row = self._rows.get(self._promises.get(promise_id, ""))
        answer = super()._settle(promise_id, event, ending)
        if row is not None and row.instance.status.terminal:
            self._put(row, event)
            return row
        return answer


@breaks("test_a_promise_of_an_ended_execution_counts_as_settled_until_the_purge")
class KeepsPromisesAfterThePurge(MemoryStore):
    def _purge(self, execution_id):
        row = self._rows.get(execution_id)
        promises = dict.fromkeys(row.promises, execution_id) if row else {}
        answer = super()._purge(execution_id)
        if row is not None and isinstance(answer, r.Purged):
            self._rows[execution_id] = row
            self._promises.update(promises)
        return answer


@breaks("test_a_retry_by_hand_takes_the_promises_along")
class LeavesPromisesToTheFailedAttempt(MemoryStore):
    def _create(self, part):
        return super()._create(msgspec.structs.replace(part, follows=None))


@breaks("test_an_adoption_cannot_redirect_a_promise")
class RedirectsPromises(MemoryStore):
    def _holder_of(self, promise_id):
        return None


@breaks("test_a_refused_commit_begins_no_child")
class BearsBeforeTheFence(MemoryStore):
    def _commit(self, part):
        for request in part.outcome.children:
            self._start_child(request, None)
        return super()._commit(part)


@breaks("test_an_id_that_is_taken_refuses_the_child")
class TakesAnybodyForItsChild(MemoryStore):
    def _start_child(self, request, paused):
        super()._start_child(request, paused)
        return request.created


@breaks("test_a_child_of_the_same_key_is_the_one_that_is_meant", "test_a_retried_child_has_the_key_still")
class DoesNotKnowItsChild(MemoryStore):
    def _start_child(self, request, paused):
        parent = msgspec.structs.replace(request.started.parent, key=f"key-{self._next_id}")
        started = msgspec.structs.replace(request.started, parent=parent)
        return super()._start_child(msgspec.structs.replace(request, started=started), paused)


@breaks("test_a_settlement_sent_by_the_commit_that_ends_an_attempt_reaches_the_next")
class ClosesBeforeItSends(MemoryStore):
    def _settle(self, promise_id, event, ending=None):
        return super()._settle(promise_id, event)


@breaks("test_a_child_of_a_tree_that_is_paused_is_born_paused")
class BornAwake(MemoryStore):
    def _start_child(self, request, paused):
        return super()._start_child(request, None)


@breaks("test_a_refused_commit_sends_nothing")
class SendsBeforeTheFence(MemoryStore):
    def _commit(self, part):
        for message in part.outcome.messages:
            self._send(self._rows[part.execution_id], message)
        return super()._commit(changed(part, messages=()))


@breaks("test_a_message_may_be_for_one_run_only")
class SendsToAnyRun(MemoryStore):
    def _send(self, sender, message):
        return super()._send(sender, msgspec.structs.replace(message, run_id=None))


@breaks("test_a_message_may_be_for_the_child_of_one_call_only")
class SendsToAnyChild(MemoryStore):
    def _send(self, sender, message):
        return super()._send(sender, msgspec.structs.replace(message, key=None))


@breaks("test_a_message_does_all_that_a_delivery_does")
class OnlyPutsMessages(MemoryStore):
    def _send(self, sender, message):
        target = self._newest(message.entity_id)
        self._put(target, message.event)
        return message.delivered


@breaks("test_a_message_to_oneself_comes_with_a_kept_lease", "test_a_kept_lease_brings_the_news_of_a_birth_with_it")
class KeepsItsNewsToItself(MemoryStore):
    def _commit(self, part):
        answer = super()._commit(part)
        return msgspec.structs.replace(answer, inbox=()) if isinstance(answer, r.Committed) else answer


@breaks("test_a_strict_commit_is_refused_if_there_is_news")
class NeverStrict(MemoryStore):
    def _commit(self, part):
        return super()._commit(changed(part, strict=False))


@breaks("test_what_is_unread_moves_along_in_order", "test_what_moved_is_told_once")
class MovesBackwards(MemoryStore):
    def _succeed(self, row, succession, paused):
        row.inbox = dict(reversed(row.inbox.items()))
        super()._succeed(row, succession, paused)


@breaks("test_what_is_unread_moves_along_in_order")
class MovesEverything(MemoryStore):
    def _succeed(self, row, succession, paused):
        types = tuple(entry.event.type for _, entry in row.inbox.values())
        super()._succeed(row, msgspec.structs.replace(succession, moves=types), paused)


@breaks("test_what_is_unread_moves_along_in_order")
class MovesWhatWasRead(MemoryStore):
    def _commit(self, part):
        consumed = () if part.outcome.successor is not None else part.outcome.consumed
        return super()._commit(changed(part, consumed=consumed))


@breaks("test_a_refused_commit_leaves_no_successor")
class SucceedsBeforeTheFence(MemoryStore):
    def _commit(self, part):
        row = self._rows[part.execution_id]
        if part.outcome.successor is not None:
            self._succeed(row, part.outcome.successor, row.paused)
        return super()._commit(changed(part, successor=None))


@breaks("test_a_successor_is_paused_as_the_one_before_was")
class SucceedsAwake(MemoryStore):
    def _succeed(self, row, succession, paused):
        super()._succeed(row, succession, None)


@breaks("test_the_first_reply_counts")
class TheLastReplyCounts(MemoryStore):
    def _answer(self, reply):
        asked = self._questions._asked.get(reply.question_id)
        if asked is not None:
            asked.reply = None
        super()._answer(reply)


@breaks("test_a_question_is_with_one_worker_for_as_long_as_a_lease")
class AsksEverybody(MemoryStore):
    async def claim_questions(self, worker, queues, limit):
        return list(self._questions.waiting(queues, self._clock.now()))[:limit]


@breaks("test_a_question_is_given_up_at_its_moment")
class NeverGivesUp(MemoryStore):
    def _ask(self, question):
        return super()._ask(msgspec.structs.replace(question, until=2**62))


@breaks("test_messages_are_kept_for_a_minute")
class KeepsMessages(MemoryStore):
    def _send_out(self, row, outcome, paused):
        now, self._clock = self._clock, type("Clock", (), {"now": lambda self: 0})()
        super()._send_out(row, outcome, paused)
        self._clock = now


@breaks("test_a_store_has_one_secret_of_its_own")
class AnotherSecretEachTime(MemoryStore):
    async def secret(self):
        self._next_id += 1
        return self._next_id.to_bytes(32)


@breaks("test_what_an_attempt_told_last_comes_to_the_next_one")
class ForgetsDetails(MemoryStore):
    def _complete(self, part):
        self._rows[part.execution_id].activities[part.event.ref].details = None
        return super()._complete(part)


@breaks("test_what_somebody_has_begun_once_is_left_alone")
class WithdrawsWhatWasBegun(MemoryStore):
    def _withdraw(self, row, withdrawal):
        super()._withdraw(row, msgspec.structs.replace(withdrawal, never_started=False))


@breaks("test_a_log_that_grows_wakes_whoever_waits_for_more_of_it")
class GrowsInSilence(MemoryStore):
    def _grown(self, row):
        self._touched.add(row.instance.execution_id)


@breaks("test_children_and_trees_are_listed")
class ListsStrangers(MemoryStore):
    async def list(self, query):
        return await super().list(msgspec.structs.replace(query, parent=None))


@breaks("test_a_list_can_show_the_newest_execution_of_each_entity")
class ListsTheNewestThatFits(MemoryStore):
    async def list(self, query):
        page = await super().list(msgspec.structs.replace(query, newest_only=False))
        first = {instance.entity_id: instance for instance in reversed(page.instances)}
        found = tuple(one for one in page.instances if not query.newest_only or one is first[one.entity_id])
        return r.Page(instances=found, cursor=page.cursor)


@breaks("test_a_list_can_be_filtered_by_the_type_of_failure")
class ForgetsTheFailure(MemoryStore):
    def _commit(self, part):
        row = self._rows[part.execution_id]
        answer = super()._commit(part)
        row.instance = msgspec.structs.replace(row.instance, failure=part.outcome.failure)
        return answer


@breaks("test_the_last_heartbeat_is_kept_with_its_moment")
class ForgetsHeartbeats(MemoryStore):
    def _complete(self, part):
        self._rows[part.execution_id].activities[part.event.ref].heartbeat_at = None
        return super()._complete(part)


@breaks("test_what_waits_in_the_inbox_is_shown_in_order")
class LooksAndTakes(MemoryStore):
    async def open_work(self, execution_id):
        work = await super().open_work(execution_id)
        self._rows[execution_id].inbox.clear()
        return work


@breaks("test_an_activity_shows_who_holds_it_and_until_when")
class ShowsFormerHolders(MemoryStore):
    def _release(self, part):
        answer = super()._release(part)
        self._rows[part.lease.execution_id].activities[part.lease.ref].leased_until = self._clock.now()
        return answer


def changed(part, **fields):
    """Return a commit whose outcome says something else."""
    return msgspec.structs.replace(part, outcome=msgspec.structs.replace(part.outcome, **fields))


def cases_of(contract):
    """Return the cases of a contract by name."""
    return {name: case for name, case in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")}


def suite(contract, kind):
    """Return the contract for stores of this kind."""

    @asynccontextmanager
    async def open_store(self, clock):
        yield kind(clock, lease=LEASE)

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
async def test_a_broken_promise_is_found_out(name):
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
