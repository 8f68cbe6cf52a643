"""Asks a workflow a question: here, if its code is known here, otherwise by a worker that knows it."""

from typing import Any, NoReturn

from msgspec import Raw

from resurgam.client.access import ANY, Access
from resurgam.core.codec import Codec
from resurgam.core.errors import NotFound, ResultTimeout, StoreError
from resurgam.core.event import Failure
from resurgam.core.failure import rebuild
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query as replayed
from resurgam.runtime.system import new_id
from resurgam.store.records import Instance, Missing, QueryAnswered, QueryTask


async def query(
    access: Access,
    instance: Instance,
    name: str,
    args: tuple[object, ...],
    timeout: Duration,
    codec: Codec[Any] | None,
) -> Any:
    """Return what the handler of query *name* answers, read by *codec* or the handler's annotation, if it is known here.

    What the handler raises is raised.
    """
    written = access.write_all(args, f"arguments of query {name!r}")
    within = milliseconds(timeout)
    if within < 0:
        raise ValueError(f"timeout is {timeout!r}; it is 0 or more")
    if instance.name in access.registry.workflows:
        answer, annotated = await _here(access, instance, name, written)
    else:
        answer, annotated = await _elsewhere(access, instance, name, written, access.clock.now() + within), ANY
    return (codec or annotated).decode(answer, f"answer to query {name!r}")


async def _here(access: Access, instance: Instance, name: str, written: Raw) -> tuple[Raw, Codec[Any]]:
    """Replay what is committed; nobody need be at work on it, and nothing of it changes."""
    workflow = access.registry.workflows.find(instance.name)
    log = await access.store.history(instance.execution_id)
    settings = Settings(secret=await access.store.secret(), max_payload=access.max_payload)
    return await run_outside_task(lambda: replayed.ask(workflow, log, name, written, settings))


async def _elsewhere(access: Access, instance: Instance, name: str, written: Raw, until: int) -> Raw:
    question = QueryTask(
        question_id=new_id(access.clock.now()),
        execution_id=instance.execution_id,
        queue=instance.queue,
        name=name,
        input=written,
        until=until,
    )
    [asked] = await access.store.ask([question])
    if isinstance(asked, Missing):
        raise NotFound(f"there is no workflow with id {instance.entity_id!r} any more")
    answered = await access.store.wait(QueryAnswered(question_id=question.question_id), until)
    reply = await access.store.reply(question.question_id) if answered else None
    if reply is None:
        raise ResultTimeout(
            f"query {name!r} of workflow {instance.entity_id!r} was not answered in time: no worker of queue "
            f"{instance.queue!r} did; start one, or give more time by timeout="
        )
    if reply.failure is not None:
        _raise(reply.failure)
    return reply.result


def _raise(failure: Failure) -> NoReturn:
    error = rebuild(failure)
    if not isinstance(error, Exception):
        # What is no Exception ends programs; that of another process must not end this one.
        raise StoreError(f"the query ended with {type(error).__name__}") from error
    raise error
