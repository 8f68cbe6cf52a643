"""Entries of logs as events of the original: its names, its fields, and sequences that begin at 0.

Every entry of a flow becomes one event, so that its sequence is its ``seq`` less one. An entry that the original does not
have keeps its own name and fields; its clients ignore types that they do not know. The catalog of a store also tells the
health of steps, which the original keeps in an aggregate of its own, the cluster.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, encode_event
from resurgam.flows.registration import step_in
from resurgam.flows.requests import arguments_of, item_id
from resurgam.flows.state import FlowInput, FlowState
from resurgam.web.argyll.shapes import moment, plan_shape, step_shape
from resurgam.web.argyll.state import error_of, shown_status

CATALOG: Final = ("catalog",)
CLUSTER: Final = ("cluster",)
"""The aggregates beside flows, of which there is one each."""

_ENVELOPE: Final = ("seq", "at", "cause", "ref", "item", "step", "type")
_NAMES: Final = {"retry_scheduled": "work_retry_scheduled"}


class WireEvent(msgspec.Struct, frozen=True):
    """An event as the original sends it. *at* is its moment in milliseconds."""

    sequence: int
    at: int
    type: str
    aggregate_id: tuple[str, ...]
    data: dict[str, Any]

    def shape(self) -> dict[str, Any]:
        """Return it as a listing shows it."""
        return {
            "sequence": self.sequence,
            "timestamp": moment(self.at),
            "type": self.type,
            "aggregate_id": self.aggregate_id,
            "data": self.data,
        }


def listing(events: Iterable[WireEvent]) -> dict[str, Any]:
    """Return events as a route lists them."""
    shown = [event.shape() for event in events]
    return {"events": shown, "count": len(shown)}


class FlowTranslator:
    """The events of one flow. Give it all entries of its log, in their order: some events repeat what others said."""

    def __init__(self, first: Event) -> None:
        self.state = FlowState([first])
        self._first: Event | None = first

    def translate(self, entry: Event) -> WireEvent:
        """Return the event that an entry is, the first one included."""
        state = self.state
        if entry is not self._first:
            state.apply(entry)
        self._first = None
        about: dict[str, Any] = {"flow_id": state.started.entity_id}
        if (step := getattr(entry, "step", None)) is not None:
            about["step_id"] = step
        number = getattr(entry, "item", entry.ref)
        if number in state.compensations:
            number = state.compensations[number]
        if number in state.items:
            about["token"] = item_id(state, number)
        about |= _said(state, entry)
        name = _NAMES.get(entry.type, entry.type)
        return WireEvent(entry.seq - 1, entry.at, name, ("flow", state.started.entity_id), about)


def flow_events(log: Iterable[Event]) -> Iterable[WireEvent]:
    """Return the events of a whole log."""
    entries = iter(log)
    first = next(entries)
    translator = FlowTranslator(first)
    yield translator.translate(first)
    for entry in entries:
        yield translator.translate(entry)


class CatalogTranslator:
    """The events of the catalog, and of the cluster. Give it all entries of the catalog's log, in their order."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._next: dict[tuple[str, ...], int] = {CATALOG: 0, CLUSTER: 0}

    def translate(self, entry: Event) -> WireEvent | None:
        """Return the event that an entry is; None for one that the original does not have."""
        match entry:
            case fe.StepRegistered() | fe.StepUpdated():
                return self._event(CATALOG, entry, {"step": step_shape(step_in(entry))})
            case fe.StepUnregistered():
                return self._event(CATALOG, entry, {"step_id": entry.step_id})
            case fe.StepHealthChanged():
                error = {"error": entry.error} if entry.error else {}
                about = {"node_id": self._node, "step_id": entry.step_id, "status": entry.status}
                return self._event(CLUSTER, entry, about | error)
            case _:
                return None

    def _event(self, aggregate: tuple[str, ...], entry: Event, data: dict[str, Any]) -> WireEvent:
        sequence = self._next[aggregate]
        self._next[aggregate] += 1
        return WireEvent(sequence, entry.at, entry.type, aggregate, data)


# What an entry of a flow says, beside the flow, the step and the work item that it is about.


def _said(state: FlowState, entry: Event) -> dict[str, Any]:
    known = _SAID.get(type(entry))
    return _own_fields(entry) if known is None else known(state, entry)


def _flow_started(state: FlowState, entry: fe.FlowStarted) -> dict[str, Any]:
    init = msgspec.json.decode(entry.input, type=FlowInput).init
    shape: dict[str, Any] = {"plan": plan_shape(state.plan, "strict"), "init": init}
    shape |= {"metadata": state.metadata} if state.metadata else {}
    return shape | ({"labels": entry.tags} if entry.tags else {})


def _step_started(state: FlowState, entry: fe.StepStarted) -> dict[str, Any]:
    items = {item_id(state, number): changes for number, changes in enumerate(entry.items, entry.first)}
    return {"inputs": entry.inputs, "work_items": items}


def _step_completed(state: FlowState, entry: fe.StepCompleted) -> dict[str, Any]:
    return {"outputs": entry.outputs, "duration": entry.at - (state.steps[entry.step].started_at or entry.at)}


def _step_not_run(state: FlowState, entry: fe.StepFailed | fe.StepSkipped) -> dict[str, Any]:
    why = {"error": entry.failure.message} if isinstance(entry, fe.StepFailed) else {"reason": entry.reason}
    unsatisfied = {"unsatisfied": entry.unsatisfied} if entry.unsatisfied else {}
    return {**why, "inputs": state.steps[entry.step].inputs, **unsatisfied}


def _retried(state: FlowState, entry: fe.RetryScheduled | fe.CompRetryScheduled) -> dict[str, Any]:
    failure = entry.failure if isinstance(entry, fe.CompRetryScheduled) else state.items[entry.item].failure
    error = "" if failure is None else failure.message
    return {"retry_count": entry.retry_count, "next_retry_at": moment(entry.next_retry_at), "error": error}


def _own_fields(entry: Event) -> dict[str, Any]:
    """Return what an entry says that the original does not have, or that has nothing to say."""
    fields = msgspec.json.decode(encode_event(entry))
    return {name: value for name, value in fields.items() if name not in _ENVELOPE}


def _error(_: FlowState, entry: fe.WorkFailed | fe.WorkNotCompleted | fe.CompFailed) -> dict[str, Any]:
    return {"error": entry.failure.message}


_SAID: Final[dict[type[Event], Callable[[FlowState, Any], dict[str, Any]]]] = {
    fe.FlowStarted: _flow_started,
    fe.FlowCompleted: lambda _, entry: {"result": entry.result},
    fe.FlowFailed: lambda state, _: {"error": error_of(state)},
    fe.FlowDeactivated: lambda state, _: {"status": shown_status(state.status)},
    fe.StepStarted: _step_started,
    fe.StepCompleted: _step_completed,
    fe.StepFailed: _step_not_run,
    fe.StepSkipped: _step_not_run,
    fe.AttributeSet: lambda _, entry: {"key": entry.attribute, "value": entry.value},
    fe.WorkStarted: lambda state, entry: {"inputs": arguments_of(state, entry.item)},
    fe.WorkSucceeded: lambda _, entry: {"outputs": entry.outputs},
    fe.WorkFailed: _error,
    fe.WorkNotCompleted: _error,
    fe.RetryScheduled: _retried,
    fe.CompStarted: lambda _, __: {},
    fe.CompRetryScheduled: _retried,
    fe.CompFailed: _error,
}
