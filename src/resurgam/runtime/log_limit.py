"""Limit the size of tracebacks in the log: the message of an exception may have megabytes."""

import logging
import traceback
from typing import Final

LIMIT: Final = 16_384
"""The most characters of a traceback that are logged."""


class TracebackLimit(logging.Filter):
    """A filter that cuts the middle of long tracebacks; it lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the text of a traceback whose messages are long; the formatter then uses it as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _message_size(error) > LIMIT // 2:
            record.exc_text = cut_middle("".join(traceback.format_exception(error)).rstrip("\n"))
        return True


def _message_size(error: BaseException) -> int:
    """Return the characters of the messages of an exception, its causes and its members."""
    size, seen, remaining = 0, set[int](), [error]
    while remaining:
        link = remaining.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        size += len(_text(link))
        remaining += [cause for cause in (link.__cause__, link.__context__) if cause is not None]
        remaining += link.exceptions if isinstance(link, BaseExceptionGroup) else ()
    return size


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- a broken __str__ must not break the log
        return ""


def cut_middle(text: str, limit: int = LIMIT) -> str:
    """Return a text of about *limit* characters, with a note in the place of its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters cut from the log ...]\n{text[-half:]}"
