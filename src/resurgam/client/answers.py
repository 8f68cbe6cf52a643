"""Reads what handlers answer: as the caller's ``type=`` says, else as the handler's annotation does, else as plain JSON.

What is stored or sent is JSON only. The annotation is known where the workflow's code is registered: a query that is
answered here tells it. For an update it is that of the handler which runs in this process have registered by this name;
if none has, or they differ, of the one that a replay of the run's history registers.
"""

from typing import Any

from msgspec import Raw

from resurgam.client.access import ANY, Access
from resurgam.core.codec import Codec, TypeForm, codec_for
from resurgam.core.errors import SerializationError
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query


def codec_of(type: TypeForm | None, what: str) -> Codec[Any] | None:
    """Return the codec of a caller's ``type=``, None if there is none; refuse a type whose values cannot be read."""
    if type is None:
        return None
    try:
        return codec_for(type)
    except SerializationError as error:
        raise SerializationError(f"{what}, type={error.path}", error.reason) from error.__cause__


async def read_update(access: Access, workflow: str, execution_id: str, update: str, written: Raw) -> Any:
    """Return what the handler of *update* returned in an execution of *workflow*, as its annotation says if it is known."""
    what = f"result of update {update!r}"
    if workflow not in access.registry.workflows:
        return ANY.decode(written, what)
    definition = access.registry.workflows.find(workflow)
    known = definition.update_results.get(update)
    if known is not None:
        try:
            return known.decode(written, what)
        except SerializationError:
            pass  # another run may have registered another handler by this name
    log = await access.store.history(execution_id)
    annotated = await run_outside_task(lambda: query.update_result(definition, log, update))
    return (annotated or ANY).decode(written, what)
