"""Draws a workflow with all that hangs below it: runs, executions, steps and children, each with its ids."""

from collections.abc import Iterable, Iterator

import click

from resurgam.cli import output
from resurgam.client.structure import Attempt, Child, Run, Step, Tree

_TITLES = {"activity": "Activity", "side_effect": "SideEffect", "promise": "Promise", "timer": "Timer"}

Branch = tuple[str, "list[Branch]"]
"""A line, and the lines below it."""


def show(found: Tree, *, as_json: bool) -> None:
    """Print a workflow and everything below it."""
    if as_json:
        output.document(found)
        return
    for run in found.runs:
        for line in _drawn(_run(found, run)):
            click.echo(output.visible(line))


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
    parts: list[Branch] = [(f"SagaEntityID: {step.entity_id}", [])]
    for title, steps in (("Transaction", step.transaction), ("Compensation", step.compensation)):
        parts += [(f"SagaExecution ({title})", [_step(one)]) for one in steps]
    return f"Saga {step.name} at {step.location}: {step.status}", parts


def _attempts(label: str, attempts: Iterable[Attempt]) -> Iterator[Branch]:
    for one in attempts:
        within = f"in {one.workflow_execution_id}"
        yield f"{label}: {one.execution_id}  (attempt {one.attempt}, {one.status}, {within})", []


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
