"""Holds a signal against what the workflow's code takes, before it is sent: then the mistake is the sender's to hear of."""

from resurgam.client.access import Access
from resurgam.core import event as events
from resurgam.core.errors import SerializationError
from resurgam.core.schema import mismatch
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query
from resurgam.store.records import Instance


async def check(access: Access, instance: Instance, signal: events.SignalReceived) -> None:
    """Refuse a value that the code of an open execution does not take, as far as it has said so: `SerializationError`.

    What has ended takes nothing, which whoever delivers the signal is told.
    """
    schema = instance.accepts.get(signal.name)
    if schema is None or instance.status.terminal:
        return
    wrong = mismatch(schema, signal.value)
    if wrong is not None and not await _taken_by_newer_code(access, instance, signal):
        path, reason = wrong
        raise SerializationError(
            f"signal {signal.name!r}{path}", f"{reason}; nothing was sent to workflow {instance.entity_id!r}"
        )


async def _taken_by_newer_code(access: Access, instance: Instance, signal: events.SignalReceived) -> bool:
    """Whether the code that is known here would take what was refused.

    What the store has is what the code said when it last ran. Nothing else may ever wake a run whose code was changed to
    take another type, so that one is asked that is here.
    """
    if instance.name not in access.registry.workflows:
        return False
    workflow = access.registry.workflows.find(instance.name)
    log = await access.store.history(instance.execution_id)
    accepts = await run_outside_task(lambda: query.accepts(workflow, log, instance.accepts))
    schema = accepts.get(signal.name)
    return schema is None or mismatch(schema, signal.value) is None
