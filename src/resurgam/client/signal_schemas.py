"""Check a signal against the schema its receiver declared, before it is sent, so that the sender gets the error."""

from resurgam.client.access import Access
from resurgam.core import event as events
from resurgam.core.errors import SerializationError
from resurgam.core.schema import mismatch
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query
from resurgam.store.records import Instance


async def check(access: Access, instance: Instance, signal: events.SignalReceived) -> None:
    """Raise `SerializationError` for a value that does not fit the schema which an open execution declared.

    A closed execution is not checked: delivery refuses the signal.
    """
    schema = instance.signal_schemas.get(signal.name)
    if schema is None or instance.status.terminal:
        return
    wrong = mismatch(schema, signal.value)
    if wrong is not None and not await _fits_newer_code(access, instance, signal):
        path, reason = wrong
        raise SerializationError(
            f"signal {signal.name!r}{path}", f"{reason}; nothing was sent to workflow {instance.entity_id!r}"
        )


async def _fits_newer_code(access: Access, instance: Instance, signal: events.SignalReceived) -> bool:
    """Whether the code registered here accepts a signal that the stored schema refuses.

    The store keeps the schema of the code that last ran. If the code was changed to accept another type, this signal
    may be the only thing that ever wakes the run, so replay it with the code registered here.
    """
    workflow = access.workflow_of(instance)
    if workflow is None:
        return False
    log = await access.store.inspector.history(instance)
    accepts = await run_outside_task(lambda: query.signal_schemas(workflow, log, instance.signal_schemas))
    schema = accepts.get(signal.name)
    return schema is None or mismatch(schema, signal.value) is None
