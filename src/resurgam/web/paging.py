"""Pages of lists that are short enough to be read whole: sorted by a key, which the cursor holds."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from resurgam.web import wire
from resurgam.web.problems import Problem

T = TypeVar("T")

KeyCursor: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-]{1,10000}$", description="The cursor of the page before; opaque.")
]


class PageQuery(wire.Request, frozen=True):
    """A page of a list."""

    limit: wire.Limit = 100
    cursor: KeyCursor | None = None


def page_of(items: Iterable[T], key: Callable[[T], str], query: PageQuery) -> tuple[Sequence[T], str | None]:
    """Return the items of a page, and the cursor of the next one; None on the last."""
    after = None if query.cursor is None else _key_of(query.cursor)
    rest = sorted((item for item in items if after is None or key(item) > after), key=key)
    shown = rest[: query.limit]
    return shown, _cursor_of(key(shown[-1])) if len(rest) > len(shown) else None


def _cursor_of(key: str) -> str:
    return urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _key_of(cursor: str) -> str:
    try:
        return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Problem(
            400, "bad_cursor", "cursor must be that of the page before, unchanged", field="query.cursor"
        ) from None
