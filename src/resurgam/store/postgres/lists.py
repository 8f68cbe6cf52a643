"""Lists of instances: each walks one index in its order, so that a page reads little more than it returns.

The entries of an index that fit a filter are a *range* of it, in the order of a list. Some filters have several ranges, which
the server merges: the instances of a name are one range for each status. Of a query with several filters, the walk is that of
the filter which selects the fewest rows, and the others are conditions: the filter whose next entries reach farthest back is
taken for that one. If few of the rows on the way fit, it is chosen again from there.

The other conditions are outside of the walk, behind its limit, so that the server cannot choose another index for them.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.store import records as r

Find: TypeAlias = Callable[..., Awaitable[Sequence[Any]]]
"""Run a statement of `reads.sql` with arguments and parts, and return its rows."""

Position: TypeAlias = tuple[int, str]
"""The place of an instance in a list: when it was created, and its execution id."""

_WORST: Final = 5
"""How many rows a walk may pass for one that fits; it is chosen again if they are more."""

_LOOK: Final = 4
"""Entries that are read of each walk, at least, to find the one that selects the fewest rows; and the share of a page that are
read of all of them."""

_NEWEST: Final = """NOT EXISTS (
    SELECT 1 FROM {schema}.instances AS newer WHERE newer.entity_id = i.entity_id AND newer.position > i.position)"""

_INSTANCES: Final = "SELECT {columns} FROM {schema}.instances AS i WHERE {range}"
_TAGGED: Final = """SELECT {columns} FROM {schema}.instance_tags AS t
    CROSS JOIN LATERAL (SELECT x.* FROM {schema}.instances AS x WHERE x.execution_id = t.execution_id OFFSET 0) AS i
    WHERE {range}"""
_TAGS: Final = "SELECT {columns} FROM {schema}.instance_tags AS t WHERE {range}"

_REACH: Final = """(SELECT row(w.at, w.id) FROM ({walk}) AS w
    ORDER BY w.at DESC, w.id DESC OFFSET {skipped}::bigint LIMIT 1)"""

_PLACE: Final = "{o}.created_at AS at, {o}.execution_id AS id"
"""The order of a list; ``{o}`` is the table that has it."""

_STATUSES: Final = tuple(Status)
_ENDS: Final = tuple(status for status in Status if status.terminal)

_NAMED: Final = "left(i.name, 200) || ' ' || i.status = {key} AND i.name = {name}"
"""As the indexes have it: neither the name nor the status by itself leads to another index."""

_NAME: Final = 200
"""Characters of a name that are in an index."""


class Arguments:
    """The arguments of a statement, each with a number."""

    def __init__(self) -> None:
        self.values: list[object] = []

    def place(self, value: object) -> str:
        """Return the placeholder of a value."""
        self.values.append(str(value) if isinstance(value, str) else value)
        return f"${len(self.values)}"

    def fill(self, condition: str, **values: object) -> str:
        """Return a condition with placeholders for the values that it names in braces."""
        for name, value in values.items():
            condition = condition.replace(f"{{{name}}}", self.place(value))
        return condition


class Walk(msgspec.Struct, frozen=True):
    """The rows that fit a filter: ranges of an index, each a condition with the values that it names in braces."""

    ranges: Sequence[tuple[str, dict[str, object]]]
    tags: bool = False
    """Whether it is an index of tags."""

    def text(self, given: Arguments, span: str) -> str:
        """Return a select of whole instances, newest first, with their place in the order as ``at`` and ``id``."""
        return self._selects(given, span, _TAGGED if self.tags else _INSTANCES, f"i.*, {_PLACE}")

    def places(self, given: Arguments, span: str) -> str:
        """Return a select of their places only."""
        return self._selects(given, span, _TAGS if self.tags else _INSTANCES, _PLACE)

    def _selects(self, given: Arguments, span: str, select: str, columns: str) -> str:
        ranges = [f"{given.fill(condition, **values)}{span}" for condition, values in self.ranges]
        text = merged(select.replace("{columns}", columns), ranges, "{o}.created_at DESC, {o}.execution_id DESC")
        return text.replace("{o}", "t" if self.tags else "i")


def merged(select: str, ranges: Iterable[str], order: str) -> str:
    """Return a select of several ranges. Each has the order itself: else the server would sort them all."""
    return " UNION ALL ".join(f"({select.replace('{range}', one)} ORDER BY {order})" for one in ranges)


# Lists, newest first.


async def listed(find: Find, query: r.Query) -> Sequence[Sequence[Any]]:
    """Return the rows of a page, and the one behind it."""
    walks, wanted, found = _walks(query), query.limit + 1, list[Any]()
    before = None if query.cursor is None else _position_of(query.cursor)
    walk, most = (walks[0], None) if len(walks) == 1 else (None, wanted)
    while True:
        if walk is None:
            walk = await _sparsest(find, query, walks, before)
        rows = await _page(find, query, walk, before, limit=wanted - len(found), most=most)
        fitting = [row for row in rows if row["fits"]]
        found += fitting
        if len(found) == wanted or most is None or not rows or rows[-1]["place"] != most:
            return found
        before = rows[-1]["created_at"], rows[-1]["execution_id"]
        if _WORST * len(fitting) < most:
            walk = None
        most *= 2


async def _page(
    find: Find, query: r.Query, walk: Walk, before: Position | None, *, limit: int, most: int | None
) -> Sequence[Any]:
    """Return the next rows of a walk that fit a query, and the last one of *most* if it comes so far."""
    given = Arguments()
    text = walk.text(given, _span(given, query, before))
    parts = {
        "walk": text,
        "fits": " AND ".join(("true", *_conditions(given, query))),
        "most": given.place(most),
        "limit": given.place(limit),
    }
    return await find("list", *given.values, **parts)


async def _sparsest(find: Find, query: r.Query, walks: Sequence[Walk], before: Position | None) -> Walk:
    """Return the walk with the fewest rows ahead, as far as its next entries tell: they reach farthest back."""
    given = Arguments()
    span, skipped = _span(given, query, before), given.place(max(_LOOK, query.limit // (_LOOK * len(walks))))
    looks = [_REACH.replace("{walk}", walk.places(given, span)).replace("{skipped}", skipped) for walk in walks]
    rows = await find("reach", *given.values, looks=", ".join(looks))
    reached = rows[0] if rows else [None] * len(walks)
    return min(zip(walks, reached, strict=True), key=lambda one: (one[1] is not None, one[1]))[0]


def _walks(query: r.Query) -> Sequence[Walk]:
    """Return a walk for each filter that has an index, or one through all instances."""
    found = [
        Walk([(f"i.{column} = {{value}}", {"value": value})])
        for column, value in (("parent_id", query.parent), ("tree_id", query.tree_id), ("failure", query.failure))
        if value is not None
    ]
    tagged = "t.name = {name} AND t.value = {value}"
    found += [Walk([(tagged, {"name": name, "value": value})], tags=True) for name, value in query.tags.items()]
    statuses = _STATUSES if query.status is None else (query.status,)
    if query.name is not None:
        found.append(_by_name(query.name, statuses))
    elif query.status is not None:
        found.append(_by_status(statuses))
    if query.kind not in (None, "workflow"):  # nearly all are workflows
        found.append(Walk([("i.kind <> 'workflow' AND i.kind = {value}", {"value": query.kind})]))
    return found or [_by_status(statuses)]


def _by_name(name: str, statuses: Iterable[Status]) -> Walk:
    return Walk([(_NAMED, {"key": f"{name[:_NAME]} {status.value}", "name": name}) for status in statuses])


def _by_status(statuses: Iterable[Status]) -> Walk:
    return Walk([("i.status = {value}", {"value": status.value}) for status in statuses])


def _span(given: Arguments, query: r.Query, before: Position | None) -> str:
    """Return the conditions that bound every range."""
    texts = [""]
    if query.since is not None:
        texts.append(given.fill("{o}.created_at >= {since}", since=query.since))
    if query.until is not None:
        texts.append(given.fill("{o}.created_at < {until}", until=query.until))
    if before is not None:
        moment, execution_id = before
        texts.append(given.fill("({o}.created_at, {o}.execution_id) < ({at}, {id})", at=moment, id=execution_id))
    return " AND ".join(texts)


def _conditions(given: Arguments, query: r.Query) -> list[str]:
    """Return what a row must fit, whichever walk has found it."""
    wanted = (
        *(("i.status", query.status), ("i.kind", query.kind), ("i.name", query.name), ("i.failure", query.failure)),
        *(("i.parent_id", query.parent), ("i.tree_id", query.tree_id)),
    )
    found = [f"{column} = {given.place(value)}" for column, value in wanted if value is not None]
    for name, value in query.tags.items():
        found.append(given.fill("i.tags::jsonb ->> {name} = {value}", name=name, value=value))
    return [*found, _NEWEST] if query.newest_only else found


def _position_of(cursor: str) -> Position:
    moment, _, execution_id = cursor.partition("-")
    if not (moment.isascii() and moment.isdigit() and len(moment) <= 18):
        raise StoreError(f"cursor must be one that a list returned, got {cursor!r}")
    return int(moment), execution_id


# Complete executions, in the order in which they ended.


async def ended(find: Find, query: r.EndedQuery) -> Sequence[Any]:
    """Return the rows of a page."""
    given = Arguments()
    closed_at, execution_id = query.after or (-1, "")
    span = given.fill(
        " AND i.closed_at < {before} AND (i.closed_at, i.execution_id) > ({at}, {id})",
        before=query.before,
        at=closed_at,
        id=execution_id,
    )
    span += " AND i.archived IS NOT NULL" if query.archived else " AND i.deactivated AND i.archived IS NULL"
    statuses = _ENDS if query.status is None else (query.status,)
    walk = _by_status(statuses) if query.name is None else _by_name(query.name, statuses)
    ranges = [f"{given.fill(condition, **values)}{span}" for condition, values in walk.ranges]
    text = merged(_INSTANCES.replace("{columns}", "i.*"), ranges, "i.closed_at, i.execution_id")
    parts = {"walk": text, "limit": given.place(query.limit)}
    return await find("ended", *given.values, **parts)
