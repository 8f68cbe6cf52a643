"""Print the tree of a workflow: runs, executions, steps and children, each with its ids."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from resurgam.cli import output
from resurgam.cli.text import visible
from resurgam.client.tree import Attempt, Child, Run, Step, Tree

_TITLES = {
    "activity": "Activity",
    "side_effect": "SideEffect",
    "promise": "Promise",
    "timer": "Timer",
    "work_item": "WorkItem",
}
_PREFIXES = {"workflow": "Workflow", "flow": "Flow"}

Branch = tuple[str, "list[Branch]"]
"""A line, and the lines below it."""


_GENERATED_ID: Final = re.compile(r"(?<![\w-])(?:[0-9A-HJKMNP-TV-Z]{26}|[a-z2-7]{32})(?![\w-])")
"""Ids that Resurgam generates: ULIDs and promise ids. One inside a longer id that a user chose stays whole."""

_TAIL: Final = 6
"""The least number of characters of an id that are shown."""


def show(found: Tree, *, ids: bool, as_json: bool) -> None:
    """Print the tree of a workflow, generated ids in full with *ids*, otherwise only their ends."""
    if as_json:
        output.document(found)
        return
    lines = [visible(line) for run in found.runs for line in _lines(_run(found, run))]
    for line in lines if ids else shortened(lines):
        click.echo(line)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the lines with each generated id cut to its end, as long as needed to keep all of them distinct."""
    ids = {found for line in lines for found in _GENERATED_ID.findall(line)}
    length = _TAIL
    while len({whole[-length:] for whole in ids}) < len(ids):
        length += 1
    return [_GENERATED_ID.sub(lambda found: f"…{found[0][-length:]}", line) for line in lines]


def _lines(branch: Branch) -> Iterator[str]:
    line, below = branch
    yield line
    for number, inner in enumerate(below, start=1):
        last = number == len(below)
        first, *others = _lines(inner)
        yield ("└── " if last else "├── ") + first
        yield from (("    " if last else "│   ") + other for other in others)


def _run(workflow: Tree, run: Run) -> Branch:
    prefix = _PREFIXES.get(workflow.kind, "Workflow")
    entity = f"{prefix}EntityID: {workflow.entity_id}  ({workflow.name} on queue {workflow.queue})"
    return (
        f"RunID: {run.run_id}  (generation {run.generation} in tree {workflow.tree_id})",
        [(entity, [*_executions(run, prefix), *_inside(run)])],
    )


def _executions(run: Run, prefix: str) -> Iterator[Branch]:
    for execution in run.executions:
        after = f", after {execution.previous}" if execution.previous else ""
        state = f"attempt {execution.attempt}, {execution.status}{after}"
        yield f"{prefix}ExecutionID: {execution.execution_id}  ({state})", []


def _inside(run: Run) -> Iterator[Branch]:
    """Yield the steps, then the children, each in the order of their locations."""
    yield from map(_step, run.steps)
    yield from map(_child, run.children)


def _step(step: Step) -> Branch:
    if step.kind == "saga":
        return _saga(step)
    if step.kind == "flow_step":
        return f"Step {step.name}: {step.status}", list(map(_step, step.steps))
    title = _TITLES[step.kind]
    name = f" {step.name}" if step.name else ""
    on = f" on queue {step.queue}" if step.queue else ""
    below = [(f"{title}EntityID: {step.entity_id}", []), *_attempts(f"{title}ExecutionID", step.executions)]
    return f"{title}{name} at {step.location}{on}: {step.status}", below


def _saga(step: Step) -> Branch:
    parts: list[Branch] = [(f"SagaEntityID: {step.entity_id}", []), *map(_saga_step, step.steps)]
    return f"Saga at {step.location}: {step.status}", parts


def _saga_step(step: Step) -> Branch:
    parts: list[Branch] = []
    for number, title, activities in ((1, "Transaction", step.transaction), (2, "Compensation", step.compensation)):
        for activity in activities:
            _, again, times = activity.entity_id.partition("~")  # run again after its saga was compensated
            execution_id = f"{step.entity_id}/{number}{again}{times}"
            parts.append((f"SagaExecutionID: {execution_id}  ({title}, {activity.status})", [_step(activity)]))
    return f"Step {step.name} at {step.location}: {step.status}", parts


def _attempts(label: str, attempts: Iterable[Attempt]) -> Iterator[Branch]:
    for attempt in attempts:
        within = f"in {attempt.workflow_execution_id}"
        times = "once" if attempt.redeliveries == 1 else f"{attempt.redeliveries} times"
        redelivered = f", redelivered {times}" if attempt.redeliveries else ""
        held = f", held by {attempt.worker}" if attempt.worker else ""
        state = f"attempt {attempt.attempt}, {attempt.status}, {within}{held}{redelivered}"
        yield f"{label}: {attempt.execution_id}  ({state})", []


def _child(child: Child) -> Branch:
    workflow = child.workflow
    detached = f", detached, in tree {workflow.tree_id}" if child.detached else ""
    prefix = _PREFIXES.get(workflow.kind, "Workflow")
    below: list[Branch] = [
        (f"{prefix}EntityID: {workflow.entity_id}", []),
        (f"TaskQueue: {workflow.queue}", []),
    ]
    for run in workflow.runs:
        executions = [*_executions(run, prefix), *_inside(run)]
        below.append((f"RunID: {run.run_id}  (generation {run.generation})", executions))
    return f"Sub-{workflow.kind} {workflow.name} at {child.location}{detached}", below
