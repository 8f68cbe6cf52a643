"""Answers from a history alone: nobody need hold the instance, and nothing of it changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import SerializationError, StoreError
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.replay.driver import Driver


def ask(
    workflow: Workflow[..., Any], log: Sequence[events.Event], query: str, written: Raw, settings: Settings
) -> tuple[Raw, Codec[Any]]:
    """Replay *log* and return what the handler of *query* answers to the arguments that *written* holds, and its codec.

    What the handler raises is raised. `NotFound` if it registers no such handler, `StoreError` if the code does not fit.
    """
    driver = Driver(workflow, log, settings)
    try:
        driver.replay()
        if driver.diverged is not None:
            entity_id = driver.started.entity_id
            raise StoreError(
                f"query {query!r} of workflow {entity_id!r} cannot be answered: this code does not fit its history "
                f"({driver.diverged}); ask where code runs that does"
            )
        return driver.handlers.query(query, written)
    finally:
        driver.close()


def update_result(workflow: Workflow[..., Any], log: Sequence[events.Event], update: str) -> Codec[Any] | None:
    """Replay *log* and return the codec of what the handler of *update* returns.

    None if this code registers no such handler, or does not fit the history.
    """
    driver = Driver(workflow, log)
    try:
        driver.replay()
        handler = driver.handlers.updates.get(update)
        return None if handler is None or driver.diverged is not None else handler.signature.result
    finally:
        driver.close()


def takes(workflow: Workflow[..., Any], log: Sequence[events.Event], promise_id: str, written: Raw) -> bool:
    """Replay *log* and return whether this code waits for the promise and reads *written* as its value."""
    driver = Driver(workflow, log, Settings())
    try:
        driver.replay()
        future = None if driver.diverged is not None else driver.recorder.pending.open_promise(promise_id)
        if future is not None:
            future.codec.decode(written, "value")
    except SerializationError:
        return False
    finally:
        driver.close()
    return future is not None


def accepts(workflow: Workflow[..., Any], log: Sequence[events.Event], known: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """Replay *log* and return what this code takes for signals, where *known* is what was said before.

    Code that does not fit the history has no say.
    """
    driver = Driver(workflow, log, Settings(signal_schemas=known))
    try:
        driver.replay()
        return known if driver.diverged is not None else driver.handlers.schemas.now
    finally:
        driver.close()
