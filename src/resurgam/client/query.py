"""Query a workflow: by replay in this process if its code is registered here, otherwise through a worker."""

from typing import Any, NoReturn

from msgspec import Raw

from resurgam.client.access import ANY, Access
from resurgam.core.codec import Codec
from resurgam.core.errors import NotFound, ResultTimeout, StoreError
from resurgam.core.event import Failure
from resurgam.core.failure import rebuild
from resurgam.core.identity import route_of
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query as replayed
from resurgam.runtime.system import new_id
from resurgam.store.records import Instance, Missing, QueryAnswered, QueryTask
from resurgam.store.secret import secret_of


async def query(
    access: Access,
    instance: Instance,
    name: str,
    args: tuple[object, ...],
    timeout: Duration,
    codec: Codec[Any] | None,
) -> Any:
    """Return the result of the handler of query *name*, decoded by *codec* or by the handler's annotation if known here.

    An exception of the handler is raised here.
    """
    encoded = access.encode_all(args, f"arguments of query {name!r}")
    within = milliseconds(timeout)
    if within < 0:
        raise ValueError(f"timeout must be 0 or more, got {timeout!r}")
    workflow = access.workflow_of(instance)
    if workflow is not None:
        answer, annotated = await _replay(access, workflow, instance, name, encoded)
    else:
        answer, annotated = await _ask_worker(access, instance, name, encoded, access.clock.now() + within), ANY
    return (codec or annotated).decode(answer, f"answer to query {name!r}")


async def _replay(
    access: Access, workflow: Workflow[..., Any], instance: Instance, name: str, encoded: Raw
) -> tuple[Raw, Codec[Any]]:
    """Replay the committed history on a throwaway coroutine; no worker need hold the instance, and it does not change."""
    log = await access.store.inspector.history(instance)
    settings = Settings(secret=await secret_of(access.store.values), max_payload=access.max_payload)
    return await run_outside_task(lambda: replayed.answer_query(workflow, log, name, encoded, settings))


async def _ask_worker(access: Access, instance: Instance, name: str, encoded: Raw, until: int) -> Raw:
    task = QueryTask(
        query_id=f"{route_of(instance.entity_id)}{new_id(access.clock.now())}",
        entity_id=instance.entity_id,
        execution_id=instance.execution_id,
        queue=instance.queue,
        name=name,
        input=encoded,
        until=until,
    )
    [submitted] = await access.store.queries.submit([task])
    if isinstance(submitted, Missing):
        raise NotFound(f"workflow {instance.entity_id!r} is no longer in the store")
    answered = await access.store.wait(QueryAnswered(query_id=task.query_id), until)
    reply = await access.store.queries.result(task.query_id) if answered else None
    if reply is None:
        raise ResultTimeout(
            f"query {name!r} of workflow {instance.entity_id!r} timed out: no worker of queue "
            f"{instance.queue!r} answered it; start one, or allow more time with timeout="
        )
    if reply.failure is not None:
        _raise(reply.failure)
    return reply.result


def _raise(failure: Failure) -> NoReturn:
    error = rebuild(failure)
    if not isinstance(error, Exception):
        # A SystemExit or KeyboardInterrupt of another process must not end this one.
        raise StoreError(f"the query handler raised {type(error).__name__}") from error
    raise error
