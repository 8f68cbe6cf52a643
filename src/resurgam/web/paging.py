"""Pages of lists that are short enough to be read whole: sorted by a key, which the cursor holds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from resurgam.web import wire

T = TypeVar("T")

KeyCursor: TypeAlias = Annotated[
    str, Meta(pattern=r"^([0-9a-f]{2}){1,5000}$", description="The cursor of the page before; opaque.")
]


class PageQuery(wire.Request, frozen=True):
    """A page of a list."""

    limit: wire.Limit = 100
    cursor: KeyCursor | None = None


def page_of(items: Iterable[T], key: Callable[[T], str], query: PageQuery) -> tuple[Sequence[T], str | None]:
    """Return the items of a page, and the cursor of the next one; None on the last."""
    after = bytes.fromhex(query.cursor or "")
    rest = sorted((item for item in items if key(item).encode() > after), key=lambda item: key(item).encode())
    shown = rest[: query.limit]
    return shown, key(shown[-1]).encode().hex() if len(rest) > len(shown) else None
