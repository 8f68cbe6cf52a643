"""Draws a workflow with all that hangs below it: runs, executions, steps and children, each with its ids."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from resurgam.cli import output
from resurgam.client.tree import Attempt, Child, Run, Step, Tree

_TITLES = {"activity": "Activity", "side_effect": "SideEffect", "promise": "Promise", "timer": "Timer"}

Branch = tuple[str, "list[Branch]"]
"""A line, and the lines below it."""


_MADE: Final = re.compile(r"(?<![\w-])(?:[0-9A-HJKMNP-TV-Z]{26}|[a-z2-7]{32})(?![\w-])")
"""Ids that Resurgam makes: ULIDs, and the ids of promises. One inside a longer id that somebody chose stays whole."""

_TAIL: Final = 6
"""Characters of an id that are shown at least."""


def show(found: Tree, *, ids: bool, as_json: bool) -> None:
    """Print a workflow and everything below it; the *ids* that Resurgam made are whole, or only their ends."""
    if as_json:
        output.document(found)
        return
    lines = [output.visible(line) for run in found.runs for line in _drawn(_run(found, run))]
    for line in lines if ids else shortened(lines):
        click.echo(line)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the lines with each id cut to its end, as much of it as tells it from all others here."""
    whole = {one for line in lines for one in _MADE.findall(line)}
    length = _TAIL
    while len({one[-length:] for one in whole}) < len(whole):
        length += 1
    return [_MADE.sub(lambda found: f"…{found[0][-length:]}", line) for line in lines]


def _drawn(branch: Branch) -> Iterator[str]:
    line, below = branch
    yield line
    for number, inner in enumerate(below, start=1):
        last = number == len(below)
        first, *others = _drawn(inner)
        yield ("└── " if last else "├── ") + first
        yield from (("    " if last else "│   ") + other for other in others)


def _run(workflow: Tree, run: Run) -> Branch:
    entity = f"WorkflowEntityID: {workflow.entity_id}  ({workflow.name} on queue {workflow.queue})"
    return (
        f"RunID: {run.run_id}  (generation {run.generation} in tree {workflow.tree_id})",
        [(entity, [*_executions(run), *_inside(run)])],
    )


def _executions(run: Run) -> Iterator[Branch]:
    for one in run.executions:
        after = f", after {one.previous}" if one.previous else ""
        yield f"WorkflowExecutionID: {one.execution_id}  (attempt {one.attempt}, {one.status}{after})", []


def _inside(run: Run) -> Iterator[Branch]:
    """Yield steps and children in the order of their places, as far as both have one."""
    yield from map(_step, run.steps)
    yield from map(_child, run.children)


def _step(step: Step) -> Branch:
    if step.kind == "saga":
        return _saga(step)
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
        for one in activities:
            _, again, undone = one.entity_id.partition("~")  # done anew after its saga was taken back
            execution_id = f"{step.entity_id}/{number}{again}{undone}"
            parts.append((f"SagaExecutionID: {execution_id}  ({title}, {one.status})", [_step(one)]))
    return f"Step {step.name} at {step.location}: {step.status}", parts


def _attempts(label: str, attempts: Iterable[Attempt]) -> Iterator[Branch]:
    for one in attempts:
        within = f"in {one.workflow_execution_id}"
        times = "once" if one.redeliveries == 1 else f"{one.redeliveries} times"
        redelivered = f", redelivered {times}" if one.redeliveries else ""
        held = f", held by {one.worker}" if one.worker else ""
        yield f"{label}: {one.execution_id}  (attempt {one.attempt}, {one.status}, {within}{held}{redelivered})", []


def _child(child: Child) -> Branch:
    workflow = child.workflow
    detached = f", detached, in tree {workflow.tree_id}" if child.detached else ""
    below: list[Branch] = [
        (f"WorkflowEntityID: {workflow.entity_id}", []),
        (f"TaskQueue: {workflow.queue}", []),
    ]
    for run in workflow.runs:
        executions = [*_executions(run), *_inside(run)]
        below.append((f"RunID: {run.run_id}  (generation {run.generation})", executions))
    return f"Sub-workflow {workflow.name} at {child.location}{detached}", below
