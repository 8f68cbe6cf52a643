"""Print plans and flows: tables and sentences for people, JSON documents for programs."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import click
from msgspec import Raw

from resurgam.cli import output
from resurgam.cli.description import error_document
from resurgam.cli.text import visible
from resurgam.client.describe import Description
from resurgam.core.entry import Failure
from resurgam.core.errors import describe
from resurgam.core.failure import rebuild
from resurgam.flows.explain import (
    EXCLUDED,
    AttributeExplanation,
    FlowExplanation,
    PlanExplanation,
    StepExplanation,
    Wait,
    in_order,
)
from resurgam.flows.state import FlowState, StepState, WorkItem, WorkStatus

_LONGEST: Final = 100
"""How many characters of a value are shown; ``--json`` has all of it."""

_MOST: Final = 10
"""How many things that a step waits for are shown; ``--json`` has all of them."""


def show_plan(explained: PlanExplanation) -> None:
    """Print a plan: each step with the reason why it is there, or left out."""
    output.table(("STEP", "", "WHY"), [row for one in explained.steps for row in _plan_rows(one)])
    for name, steps in explained.missing.items():
        needed = f", needed by {', '.join(steps)}" if steps else ""
        click.echo(visible(f"must be given: {name}{needed}"))


def _plan_rows(one: StepExplanation) -> Iterator[Sequence[str]]:
    mark = "left out" if one.status == EXCLUDED else "goal" if one.goal else ""
    for number, why in enumerate(one.why or ("",)):
        yield ("", "", why) if number else (one.step, mark, why)


def show_flow(state: FlowState, found: Description, *, as_json: bool) -> None:
    """Print a flow: its status, its steps and its attributes."""
    if as_json:
        output.document(_flow_document(state, found))
        return
    output.table(None, [row for row in _flow_rows(state, found) if row[1]])
    if state.steps:
        click.echo()
        rows = [[step_id, *_step_cells(state, step_id, step)] for step_id, step in in_order(state.plan, state.steps)]
        output.table(("STEP", "STATUS", "WORK", "STARTED", "ENDED"), rows)
    provided = [(name, one) for name, values in sorted(state.attributes.items()) for one in values]
    if provided:
        click.echo()
        cells = [[name, one.step or "given", output.time_text(one.at), _value(one.value)] for name, one in provided]
        output.table(("ATTRIBUTE", "PROVIDED BY", "AT", "VALUE"), cells)


def _flow_rows(state: FlowState, found: Description) -> Iterator[tuple[str, str]]:
    yield "id", found.entity_id
    yield "goals", ", ".join(state.plan.goals)
    yield "status", str(found.status)
    yield "queue", found.queue
    yield "created", _time(found.created_at)
    yield "closed", _time(found.closed_at)
    yield "tags", output.tags_text(found.tags)
    yield "result", _value(state.result) if found.status == "completed" else ""
    yield "error", describe(found.error) if isinstance(found.error, BaseException) else found.error or ""


def _step_cells(state: FlowState, step_id: str, step: StepState) -> list[str]:
    done = sum(item.status is WorkStatus.SUCCEEDED for item in state.items_of(step_id))
    work = f"{done} of {len(step.items)}" if step.started_at is not None else ""
    return [step.status, work, output.time_text(step.started_at), output.time_text(step.ended_at)]


def _flow_document(state: FlowState, found: Description) -> dict[str, Any]:
    return {
        "id": found.entity_id,
        "goals": state.plan.goals,
        "status": found.status,
        "created_at": found.created_at,
        "closed_at": found.closed_at,
        "deactivated": state.deactivated,
        "result": state.result,
        "error": error_document(found.error),
        "steps": {step_id: _step_document(state, step_id, step) for step_id, step in state.steps.items()},
        "attributes": {
            name: [{"value": one.value, "step": one.step or None, "at": output.moment(one.at)} for one in values]
            for name, values in sorted(state.attributes.items())
        },
    }


def _step_document(state: FlowState, step_id: str, step: StepState) -> dict[str, Any]:
    return {
        "status": step.status,
        "goal": step_id in state.plan.goals,
        "inputs": step.inputs,
        "outputs": step.outputs,
        "error": _error(step.failure),
        "reason": step.reason,
        "unsatisfied": step.unsatisfied,
        "started_at": output.moment(step.started_at),
        "ended_at": output.moment(step.ended_at),
        "items": [_item_document(number, state.items[number]) for number in step.items],
    }


def _item_document(number: int, item: WorkItem) -> dict[str, Any]:
    return {
        "number": number,
        "status": item.status,
        "inputs": item.changes,
        "outputs": item.outputs,
        "error": _error(item.failure),
        "attempts": item.attempts,
        "retries": item.retry_count,
        "next_retry_at": output.moment(item.next_retry_at),
    }


def _error(failure: Failure | None) -> object:
    return None if failure is None else error_document(rebuild(failure))


def explain_flow(flow_id: str, explained: FlowExplanation) -> None:
    """Print what each step of a flow did or waits for, and where its attributes came from."""
    lines = [f"flow {flow_id} for {', '.join(explained.goals)}: {explained.status}"]
    lines += [f"  {text}" for text in explained.because]
    for one in explained.steps:
        lines += _step_lines(one)
    if explained.attributes:
        lines.append("attributes")
        lines += [line for one in explained.attributes for line in _attribute_lines(one)]
    for line in lines:
        click.echo(visible(line.replace("\n", " ")))


def _step_lines(one: StepExplanation) -> Iterator[str]:
    yield f"{one.step}{' (goal)' if one.goal else ''}: {'left out' if one.status == EXCLUDED else one.status}"
    yield from (f"  {'' if one.status == EXCLUDED else 'in the plan: '}{text}" for text in one.why)
    yield from (f"  {text}" for text in one.because)
    yield from (f"  waits for {_waited(wait)}" for wait in one.waits[:_MOST])
    if len(one.waits) > _MOST:
        yield f"  waits for {len(one.waits) - _MOST:,} more; --json shows all"


def _waited(wait: Wait) -> str:
    return wait.text if wait.until is None else f"{wait.text}, until {_time(wait.until)}"


def _attribute_lines(one: AttributeExplanation) -> Iterator[str]:
    for provision in one.values:
        source = "given" if provision.step is None else f"provided by {provision.step} at {_time(provision.at)}"
        yield f"  {one.attribute}: {source}: {_value(provision.value)}"
    if not one.values:
        yield f"  {one.attribute}: no value; {' or '.join(one.providers) or 'no step'} provides it"


def _value(value: Raw) -> str:
    text = bytes(value).decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')}Z"
