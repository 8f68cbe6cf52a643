"""The routes of workflows."""

from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from resurgam.core.errors import ResultTimeout, ResurgamError, describe
from resurgam.runtime.system import new_id
from resurgam.store.records import Query
from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.instances import CLOSED, IDS, NOT_FOUND, STARTED, Kind, cancel, pause, resume, terminate
from resurgam.web.problems import Problem, problem_of, refused_values
from resurgam.web.routing import Call, Endpoint, Reply

_WORKFLOWS: Final = Kind("workflow")
_LARGEST_TREE: Final = 1000
"""The most executions of a tree that is returned whole."""


async def start(call: Call[None, wire.StartWorkflow]) -> Reply:
    """Start a workflow."""
    body = call.body
    with refused_values("body"):
        handle = await call.engine.start(
            body.workflow,
            *body.args,
            id=body.id,
            queue=body.queue,
            tags=body.tags,
            delay=body.delay,
            if_exists=body.if_exists,
        )
    ids = wire.Started(entity_id=handle.entity_id, run_id=handle.run_id, execution_id=handle.execution_id)
    return Reply(ids, 201, {"Location": call.url_of("workflows", handle.entity_id)})


async def list_(call: Call[wire.ListQuery, None]) -> Reply:
    """Return a page of workflows."""
    page = await _WORKFLOWS.page(call.engine, call.query)
    shown = tuple(wire.Summary(**wire.summary_fields(one)) for one in page.instances)
    return Reply(wire.WorkflowPage(workflows=shown, cursor=page.cursor))


async def show(call: Call[wire.OfExecution, None]) -> Reply:
    """Describe one execution of a workflow."""
    found = await _WORKFLOWS.find(call, run=call.query.run, execution=call.query.execution)
    handle = call.engine.handle(found.entity_id, execution_id=found.execution_id)
    return Reply(wire.workflow_of(found, await handle.describe()))


async def tree(call: Call[wire.OfExecution, None]) -> Reply:
    """Return everything below a workflow, unless it is too much for one answer."""
    found = await _WORKFLOWS.find(call, run=call.query.run, execution=call.query.execution)
    members = await call.engine.inspector.list(Query(tree_id=found.tree_id, limit=_LARGEST_TREE))
    instead = f"list its children instead: {call.url_of('workflows')}?parent=ID"
    if members.cursor is not None:
        detail = f"the tree of {found.entity_id!r} has more than {_LARGEST_TREE} executions; {instead}"
        raise Problem(422, "too_many", detail)
    handle = call.engine.handle(found.entity_id, execution_id=found.execution_id)
    try:
        shown = msgspec.convert(await handle.tree(), wire.Tree, from_attributes=True)
        return Reply(msgspec.Raw(msgspec.json.encode(shown)))
    except RecursionError:
        detail = f"the tree of {found.entity_id!r} has too many children of children; {instead}"
        raise Problem(422, "too_deep", detail) from None


async def signal(call: Call[wire.OfRun, wire.SendSignal]) -> Reply:
    """Send a signal to a workflow."""
    found = await _WORKFLOWS.find_open(call)
    name = call.path("name")
    with refused_values("body.value"):
        await call.engine.handle(found.entity_id, call.query.run).signal(name, call.body.value, id=call.body.id)
    return Reply(wire.Acknowledged(entity_id=found.entity_id, action="signal"))


async def query(call: Call[wire.OfExecution, wire.AskQuery]) -> Reply:
    """Return the answer of a query handler."""
    found = await _WORKFLOWS.find(call, run=call.query.run, execution=call.query.execution)
    handle = call.engine.handle(found.entity_id, execution_id=found.execution_id)
    name = call.path("name")
    asked = handle.query(name, *call.body.args, timeout=call.body.timeout, type=Any)
    return Reply(wire.Value(result=await _answered(f"query {name!r}", asked)))


async def update(call: Call[wire.OfRun, wire.SendUpdate]) -> Reply:
    """Send an update, and return the result of its handler."""
    found = await _WORKFLOWS.find(call, run=call.query.run)
    handle, name, body = call.engine.handle(found.entity_id, call.query.run), call.path("name"), call.body
    # With an id of its own too: a caller whose time is up asks for the result by it.
    update_id = body.id or new_id(call.engine.clock.now())
    try:
        if body.wait == "completed":
            result = handle.update(name, *body.args, id=update_id, timeout=body.timeout, type=Any)
            return Reply(wire.Value(result=await _answered(f"update {name!r}", result)))
        sent = handle.update(name, *body.args, wait="accepted", id=update_id, timeout=body.timeout)
        await _answered(f"update {name!r}", sent)
    except ResultTimeout:
        pass  # it goes on
    return Reply(wire.UpdateSent(entity_id=found.entity_id, update_id=update_id), 202)


async def _answered(what: str, answer: Awaitable[Any]) -> Any:
    """Return what a handler returns; whatever it raises is its own answer, and no error of the server."""
    try:
        return await answer
    except ResultTimeout:
        raise
    except Exception as error:
        refusal = problem_of(error) if isinstance(error, ResurgamError) else None
        if refusal is None:
            raise Problem(422, "handler_failed", f"{what} raised {describe(error)}") from error
        if refusal.status == 400:
            refusal.field = "body.args"
        raise refusal from error


async def retry(call: Call[wire.OfRun, None]) -> Reply:
    """Retry a failed workflow, or revive dead letters and parked runs."""
    found = await _WORKFLOWS.find(call, run=call.query.run)
    revived = await call.engine.handle(found.entity_id, call.query.run).retry()
    return Reply(wire.Retried(entity_id=found.entity_id, revived=revived))


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/workflows",
        handle=start,
        role=Role.OPERATE,
        summary="Start a workflow.",
        description="`Location` names it. While an execution of the id is open, another start is a conflict (409), unless "
        "`if_exists` says otherwise: with `attach` a start can be repeated safely.",
        body=wire.StartWorkflow,
        answers={201: wire.Started},
        refusals={
            404: "This server serves the queue, and no workflow has this name.",
            409: "The id has an open execution.",
        },
        example={"workflow": "checkout", "args": [{"id": "o-1", "total": 42}], "id": "o-1", "tags": {"team": "shop"}},
        reply=STARTED,
    ),
    Endpoint(
        method="GET",
        path="/workflows",
        handle=list_,
        role=Role.READ,
        summary="List workflows, newest first.",
        query=wire.ListQuery,
        answers={200: wire.WorkflowPage},
    ),
    Endpoint(
        method="GET",
        path="/workflows/{id}",
        handle=show,
        role=Role.READ,
        summary="Show a workflow: its status, values and open work.",
        query=wire.OfExecution,
        answers={200: wire.Workflow},
        refusals=NOT_FOUND,
        path_examples=IDS,
    ),
    Endpoint(
        method="GET",
        path="/workflows/{id}/history",
        handle=_WORKFLOWS.history,
        role=Role.READ,
        summary="Return the history of an execution, page by page.",
        query=wire.HistoryQuery,
        answers={200: wire.HistoryPage},
        refusals=NOT_FOUND,
        path_examples=IDS,
    ),
    Endpoint(
        method="GET",
        path="/workflows/{id}/tree",
        handle=tree,
        role=Role.READ,
        summary="Return the runs, steps and children of a workflow.",
        query=wire.OfExecution,
        answers={200: wire.Tree},
        refusals={**NOT_FOUND, 422: "The tree has too many executions, or levels, for one answer."},
        path_examples=IDS,
    ),
    Endpoint(
        method="GET",
        path="/workflows/{id}/result",
        handle=_WORKFLOWS.result,
        role=Role.READ,
        summary="Wait for the end of a workflow, and tell how it ended.",
        description="Retries and continuations are followed. The answer is 200 once it has ended, however it did, and 202 if "
        "it has not within `timeout` seconds: ask again.",
        query=wire.ResultQuery,
        answers={200: wire.Outcome, 202: wire.Outcome},
        refusals=NOT_FOUND,
        reply={**STARTED, "status": "completed", "result": "shipped", "error": None},
        path_examples=IDS,
    ),
    Endpoint(
        method="POST",
        path="/workflows/{id}/signals/{name}",
        handle=signal,
        role=Role.OPERATE,
        summary="Send a signal to a workflow.",
        query=wire.OfRun,
        body=wire.SendSignal,
        optional=True,
        answers={200: wire.Acknowledged},
        refusals=CLOSED,
        example={"value": {"by": "ann"}, "id": "approval-1"},
        reply={"entity_id": "o-1", "action": "signal"},
        path_examples={"id": "o-1", "name": "approve"},
    ),
    Endpoint(
        method="POST",
        path="/workflows/{id}/queries/{name}",
        handle=query,
        role=Role.READ,
        summary="Ask a query handler of a workflow; nothing changes.",
        query=wire.OfExecution,
        body=wire.AskQuery,
        optional=True,
        answers={200: wire.Value},
        refusals={
            404: "There is no workflow with this id, or it has no such query.",
            409: "No worker answered in time, or the code does not fit the history.",
            422: "The handler raised.",
        },
        example={"args": []},
        reply={"result": 42},
        path_examples={"id": "o-1", "name": "total"},
    ),
    Endpoint(
        method="POST",
        path="/workflows/{id}/updates/{name}",
        handle=update,
        role=Role.OPERATE,
        summary="Send an update to a workflow, and return its result.",
        description="The answer is 202 if it is not done within `timeout` seconds, or with `wait` *accepted* once it is "
        "accepted. It goes on: send it again with the same `id` to wait for its result.",
        query=wire.OfRun,
        body=wire.SendUpdate,
        optional=True,
        answers={200: wire.Value, 202: wire.UpdateSent},
        refusals={
            404: "There is no workflow with this id, or it ended before the update was done.",
            409: "The id of the update belongs to another one.",
            422: "The update was rejected, or its handler raised.",
        },
        example={"args": [{"item": "tea"}], "id": "add-1"},
        reply={"result": 3},
        path_examples={"id": "o-1", "name": "add"},
    ),
    _WORKFLOWS.control(
        "cancel",
        cancel,
        "Cancel a workflow; its code may clean up first.",
        body=wire.Because,
        example={"reason": "sold out"},
    ),
    _WORKFLOWS.control(
        "terminate",
        terminate,
        "End a workflow at once, without clean-up.",
        body=wire.Because,
        example={"reason": "stuck"},
    ),
    _WORKFLOWS.control(
        "pause", pause, "Pause a workflow.", body=wire.PauseRequest, example={"reason": "audit", "tree": True}
    ),
    _WORKFLOWS.control("resume", resume, "Resume a paused workflow."),
    Endpoint(
        method="POST",
        path="/workflows/{id}/retry",
        handle=retry,
        role=Role.OPERATE,
        summary="Retry a failed workflow, or revive its dead letters and parked runs.",
        query=wire.OfRun,
        answers={200: wire.Retried},
        refusals=CLOSED,
        reply={"entity_id": "o-1", "revived": 1},
        path_examples=IDS,
    ),
)
