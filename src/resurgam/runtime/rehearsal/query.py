"""Answer questions by replaying a history, without a lease and without changing the instance."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import SerializationError, WrongState
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.replay.driver import Driver


def answer_query(
    workflow: Workflow[..., Any], log: Sequence[events.Event], query: str, written: Raw, settings: Settings
) -> tuple[Raw, Codec[Any]]:
    """Replay *log*, call the handler of *query* with the encoded arguments *written*, and return its result and codec.

    Exceptions of the handler propagate. Raise `NotFound` if the code registers no such handler, and `WrongState` if it
    does not fit the history.
    """
    driver = Driver(workflow, log, settings)
    try:
        driver.replay()
        if driver.diverged is not None:
            entity_id = driver.started.entity_id
            raise WrongState(
                f"query {query!r} of workflow {entity_id!r} cannot be answered: this code does not fit its history "
                f"({driver.diverged}); send it where a worker has code that does"
            )
        return driver.handlers.query(query, written)
    finally:
        driver.close()


def update_result(workflow: Workflow[..., Any], log: Sequence[events.Event], update: str) -> Codec[Any] | None:
    """Replay *log* and return the result codec of the handler of *update*.

    Return None if this code registers no such handler, or does not fit the history.
    """
    driver = Driver(workflow, log)
    try:
        driver.replay()
        handler = driver.handlers.updates.get(update)
        return None if handler is None or driver.diverged is not None else handler.signature.result
    finally:
        driver.close()


def accepts_value(workflow: Workflow[..., Any], log: Sequence[events.Event], promise_id: str, written: Raw) -> bool:
    """Replay *log* and return whether this code waits for the promise and can decode *written* as its value."""
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


def signal_schemas(
    workflow: Workflow[..., Any], log: Sequence[events.Event], known: Mapping[str, Raw]
) -> Mapping[str, Raw]:
    """Replay *log* and return the schemas of the signals that this code accepts; *known* are the stored ones.

    If the code does not fit the history, *known* is returned.
    """
    driver = Driver(workflow, log, Settings(signal_schemas=known))
    try:
        driver.replay()
        return known if driver.diverged is not None else driver.handlers.schemas.now
    finally:
        driver.close()
