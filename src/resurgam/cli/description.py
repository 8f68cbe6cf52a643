"""Print the description of a workflow: a page for people, a JSON document for programs."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from resurgam.cli import output
from resurgam.client.describe import Description
from resurgam.client.pending import PendingWork
from resurgam.core.errors import RemoteError, describe
from resurgam.core.lifecycle import WORKFLOW

_LONGEST: Final = 400
"""How many characters of a value are shown; ``--json`` has all of it."""

_MOST: Final = 20
"""How many items of open work are shown; ``--json`` has all of them."""

_DIVERGENCE: Final = {
    "class": "error",
    "source": "source",
    "location": "location",
    "command": "command",
    "recorded": "history_value",
    "code": "code_value",
}
"""The rows of a divergence, and the field of the failure that each shows."""

Row = tuple[str, str]


def show(found: Description, *, as_json: bool) -> None:
    """Print the description of a workflow."""
    if as_json:
        output.document(_document(found))
    else:
        output.table(None, [row for row in _rows(found) if row[1]])


def _document(found: Description) -> dict[str, object]:
    return msgspec.structs.asdict(found) | {
        "error": error_document(found.error),
        "previous_error": error_document(found.previous_error),
        "parent": output.call(found.parent),
        "pending": [_pending_document(work) for work in found.pending],
    }


def _pending_document(work: PendingWork) -> dict[str, object]:
    location = None if work.location is None else str(work.location)
    return msgspec.structs.asdict(work) | {"location": location, "error": error_document(work.error)}


def error_document(error: BaseException | str | None) -> object:
    """Return an error with its cause chain and the members of a group, as values for JSON."""
    if not isinstance(error, BaseException):
        return error
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return {
        "error": describe(error),
        **({"fields": error.fields} if isinstance(error, RemoteError) and error.fields else {}),
        "cause": error_document(error.__cause__),
        "members": [error_document(member) for member in members],
    }


def _rows(found: Description) -> Iterator[Row]:
    yield "id", found.entity_id
    yield "kind", "" if found.kind == WORKFLOW else found.kind
    yield "name", found.name
    yield "status", found.status
    yield "queue", found.queue
    yield "created", _time(found.created_at)
    yield "begins", _time(found.begins_at)
    yield "closed", _time(found.closed_at)
    yield "archived", _archived(found)
    yield "parent", _parent(found)
    yield "execution", found.execution_id
    yield "previous", found.previous or ""
    yield "run", found.run_id
    yield "tree", found.tree_id
    yield "attempt", f"{found.attempt} of generation {found.generation}"
    yield "history", f"{found.history_length} entr{'y' if found.history_length == 1 else 'ies'}"
    yield "tags", output.tags_text(found.tags)
    yield "held by", found.worker or ""
    yield "redelivered", _times(found.redeliveries)
    if not _is_row(found):
        yield "input", _value(found.input)
        yield "result", _value(found.result) if found.status == "completed" else ""
    for key, value in found.state.items():
        yield "state", f"{key} = {_value(value)}"
    yield from _links(found.previous_error, "failed before")
    yield from _open_work(found)
    yield from (("uncompensated", step) for step in found.uncompensated)
    yield from _links(found.error, "error")


def _open_work(found: Description) -> Iterator[Row]:
    by_text = {work.text: work for work in found.pending}
    shown = (*found.waiting_for, *(work.text for work in found.pending if work.text not in found.waiting_for))
    for text in shown[:_MOST]:
        work = by_text.get(text)
        running = work is not None and work.kind == "update" and work.status == "running"
        yield "runs" if running else "waits for", text
        if work is not None:
            yield from (row for row in _progress(work) if row[1])
    if len(shown) > _MOST:
        yield "waits for", f"{len(shown) - _MOST} more; --json shows all"


def _progress(work: PendingWork) -> Iterator[Row]:
    yield "  attempt", _attempt(work)
    yield "  redelivered", _times(work.redeliveries)
    yield "  last error", describe(work.error) if isinstance(work.error, BaseException) else work.error or ""
    if work.heartbeat_at is not None:
        details = "" if work.details is None else f" {_value(work.details)}"
        yield "  heartbeat", f"{_time(work.heartbeat_at)}{details}"
    if work.kind == "listener":
        yield "  until", _time(work.until)
    if work.kind == "promise":
        yield "  id", work.entity_id or ""


def _attempt(work: PendingWork) -> str:
    if work.attempt is None:
        return "answered; the workflow has not read it yet" if work.status == "answered" else ""
    number = f"{work.attempt} of {work.max_attempts}" if work.max_attempts else str(work.attempt)
    match work.status:
        case "retrying":
            state = f"next attempt at {_time(work.next_try)}"
        case "running" if work.worker:
            state = f"running on {work.worker}"
        case "queued":
            state = f"waits for a worker that serves queue {work.queue!r}"
        case "lost":
            state = f"the lease of {work.worker} expired; the next worker claims it"
        case "acknowledged":
            state = f"accepted by its service, which has until {_time(work.until)} to answer"
        case "dead":
            state = "dead letter; resurgam retry revives it"
        case _:
            state = f"{work.status}, next attempt at {_time(work.next_try)}" if work.next_try else work.status
    return f"{number}, {state}"


def _links(error: BaseException | str | None, label: str) -> Iterator[Row]:
    """Yield a row for an error and for each of its causes."""
    if not isinstance(error, BaseException):
        yield label, error or ""
        return
    yield label, describe(error)
    if isinstance(error, RemoteError):
        yield from _divergence(error.fields)
    for member in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _links(member, "member")
    yield from _links(error.__cause__, "caused by")


def _divergence(fields: Mapping[str, object]) -> Iterator[Row]:
    """Yield the rows of a divergence, if the fields of the failure are those of one."""
    if "history_value" in fields:
        for label, name in _DIVERGENCE.items():
            yield f"  {label}", str(fields.get(name) or "")


def _archived(found: Description) -> str:
    return f"in {found.archived}; --archived reads it" if _is_row(found) else ""


def _is_row(found: Description) -> bool:
    """Whether nothing of an execution but its row is known, because its history is in an archive."""
    return found.archived is not None


def _parent(found: Description) -> str:
    call = found.parent
    return "" if call is None else f"{call.entity_id} at {call.location} (run {call.run_id}, {call.execution_id})"


def _times(count: int) -> str:
    return "" if not count else "once" if count == 1 else f"{count} times"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')}Z"


def _value(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
