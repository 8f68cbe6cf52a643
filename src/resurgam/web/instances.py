"""What workflows and flows have in common: find one by its id, read it page by page, wait for it, control it."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

from resurgam.client import chain
from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.core.flow_event import FLOW, FlowCompleted, FlowFailed
from resurgam.core.lifecycle import WORKFLOW
from resurgam.engine import Engine
from resurgam.store.protocol import Inspector
from resurgam.store.records import Instance, Page
from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.drain import drain_of
from resurgam.web.problems import Problem, refused_values
from resurgam.web.routing import Call, Endpoint, Reply

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the entries after which a page of a history ends, though it has fewer than were asked for."""

_AT_ONCE: Final = 32
"""Entries that are read at once."""

_ROUTES: Final = {WORKFLOW: "workflows", FLOW: "flows"}
"""The first segment of the path of each kind."""

NOT_FOUND: Final = {404: "There is nothing with this id, or it is of another kind."}
CLOSED: Final = {**NOT_FOUND, 409: "It is closed, or in another state that does not allow this."}


IDS: Final = {"id": "o-1"}
STARTED: Final = {"entity_id": "o-1", "run_id": "0192f0c1d2e3", "execution_id": "0192f0c1d2e4"}
"""Examples of an id in a path, and of the ids of what was started."""

Act = Callable[[Handle[Any], Any], Coroutine[Any, Any, None]]


class Kind:
    """The instances of one kind, as the routes of this kind find them."""

    def __init__(self, kind: Literal["workflow", "flow"]) -> None:
        self.kind = kind

    async def find(self, call: Call[Any, Any], *, run: str | None = None, execution: str | None = None) -> Instance:
        """Return the execution that a request is about; refuse (404) an unknown id, and one of another kind."""
        entity_id = call.path("id")
        found = await call.engine.inspector.get(entity_id, run, execution_id=execution)
        if found is None:
            of = "".join(
                f" and {what} {one!r}" for what, one in (("run", run), ("execution", execution)) if one is not None
            )
            raise Problem(404, "not_found", f"there is no {self.kind} with id {entity_id!r}{of}", field="path.id")
        if found.kind != self.kind:
            other = _ROUTES.get(found.kind)
            where = f"; see {call.url_of(other, entity_id)}" if other else ""
            raise Problem(404, "other_kind", f"{entity_id!r} is a {found.kind}, no {self.kind}{where}", field="path.id")
        return found

    async def find_open(self, call: Call[Any, Any]) -> Instance:
        """Return the execution that a request acts on; refuse (409) one that is closed."""
        found = await self.find(call, run=call.query.run)
        if found.status.terminal:
            raise Problem(409, "closed", f"{self.kind} {found.entity_id!r} is closed ({found.status})")
        return found

    async def page(self, engine: Engine, query: wire.ListQuery) -> Page:
        """Return a page of the instances of this kind."""
        tags = dict(pair.split("=", 1) for pair in query.tag)
        with refused_values("query"):
            return await engine.list(
                kind=self.kind,
                status=query.status,
                name=query.name,
                tags=tags,
                parent=query.parent,
                failure=query.failure,
                since=query.since,
                until=query.until,
                newest_only=query.newest_only,
                limit=query.limit,
                cursor=query.cursor,
            )

    async def history(self, call: Call[wire.HistoryQuery, None]) -> Reply:
        """Return a page of the history of an execution."""
        asked = call.query
        after, execution = 0, asked.execution
        if asked.cursor is not None:
            number, _, execution = asked.cursor.partition("-")
            after = int(number)
        found = await self.find(call, run=asked.run, execution=execution)
        entries, more = await _read_entries(call.engine.inspector, found, asked, after)
        return Reply(
            wire.HistoryPage(
                entity_id=found.entity_id,
                run_id=found.run_id,
                execution_id=found.execution_id,
                entries=tuple(entries),
                cursor=f"{entries[-1].seq}-{found.execution_id}" if more else None,
            )
        )

    async def result(self, call: Call[wire.ResultQuery, None]) -> Reply:
        """Wait for the end, and return how it ended; 202 if it has not within the time."""
        run = call.query.run
        first = await self.find(call, run=run)
        until = call.engine.clock.now() + round(call.query.timeout * 1000)
        waiting = chain.wait_for_chain(call.engine.readable, first, until, pinned=run is not None)
        end = await drain_of(call.request).unless_begun(waiting, call.request)
        if end is None:
            return Reply(_outcome(await self.find(call, run=run), None), 202)
        last, closing = end
        if not last.status.terminal:  # as it was before the end
            last = await self.find(call, execution=last.execution_id)
        return Reply(_outcome(last, closing))

    def control(self, action: str, act: Act, summary: str, *, body: Any = None, example: Any = None) -> Endpoint:
        """Return the row of a request that *act* carries out on an open execution."""

        async def handle(call: Call[wire.OfRun, Any]) -> Reply:
            found = await self.find_open(call)
            with refused_values("body"):
                await act(call.engine.handle(found.entity_id, call.query.run), call.body)
            return Reply(wire.Acknowledged(entity_id=found.entity_id, action=action))

        return Endpoint(
            method="POST",
            path=f"/{_ROUTES[self.kind]}/{{id}}/{action}",
            handle=handle,
            role=Role.OPERATE,
            summary=summary,
            query=wire.OfRun,
            body=body,
            optional=True,
            answers={200: wire.Acknowledged},
            refusals=CLOSED,
            example=example,
            reply={"entity_id": "o-1", "action": action},
            path_examples=IDS,
        )


async def _read_entries(
    inspector: Inspector, found: Instance, asked: wire.HistoryQuery, after: int
) -> tuple[list[wire.Entry], bool]:
    """Return the entries of a page, and whether there are more. A few are read at a time, because each may be large."""
    entries: list[wire.Entry] = []
    size, more = 0, True
    while more and len(entries) < asked.limit and size < PAGE_BYTES:
        room = min(_AT_ONCE, asked.limit - len(entries))
        log = await inspector.history(found, forgotten=asked.forgotten, after=after, limit=room + 1)
        more = len(log) > room
        for entry in wire.entries_of(log[:room]):
            if size >= PAGE_BYTES:
                return entries, True
            entries.append(entry)
            after, size = entry.seq, size + len(memoryview(entry.event))
    return entries, more


def _outcome(found: Instance, closing: events.Event | None) -> wire.Outcome:
    result, error = None, None
    match closing:
        case events.WorkflowCompleted() | FlowCompleted():
            result = wire.value_of(closing.result, "result")
        case events.WorkflowFailed() | events.WorkflowRetried() | FlowFailed():
            error = wire.failure_of(closing.failure)
        case events.WorkflowTerminated():
            error = wire.Error(type="terminated", message=closing.reason)
        case _:
            pass
    return wire.Outcome(
        entity_id=found.entity_id,
        run_id=found.run_id,
        execution_id=found.execution_id,
        status=found.status,
        result=result,
        error=error,
    )


async def cancel(handle: Handle[Any], body: wire.Because) -> None:
    """Cancel."""
    await handle.cancel(body.reason)


async def terminate(handle: Handle[Any], body: wire.Because) -> None:
    """Terminate."""
    await handle.terminate(body.reason)


async def pause(handle: Handle[Any], body: wire.PauseRequest) -> None:
    """Pause."""
    await handle.pause(tree=body.tree, reason=body.reason)


async def resume(handle: Handle[Any], body: None) -> None:
    """Resume."""
    await handle.resume()
