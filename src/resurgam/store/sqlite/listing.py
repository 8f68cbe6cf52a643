"""Lists of instances: each walks an index in its order, so that a page reads little more than it returns.

An index that has other columns before those of the order is walked in several ranges at once, which SQLite merges: the
instances of a name are one range for each of its statuses. Of a query with several filters, the walk is that of the filter
which selects the fewest rows, and the others are conditions. The filter whose next entries reach farthest back is taken
for that one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from resurgam.store import records as r
from resurgam.store.sqlite.session import Row, Session

_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1

_LOOK: Final = 8
"""Entries that are read of each walk, at least, to find the one that selects the fewest rows."""

_SHOWN: Final = "CASE WHEN i.paused IS NULL THEN i.status ELSE 'paused' END"
"""The status that is shown, as the indexes have it."""

_NEWEST: Final = """NOT EXISTS (
    SELECT 1 FROM instances AS newer WHERE newer.entity_id = i.entity_id AND newer.position > i.position)"""

_HAD: Final = """EXISTS (
    SELECT 1 FROM instance_tags AS had
    WHERE had.name = :tag_{number} AND had.value = :value_{number}
      AND had.created_at = i.created_at AND had.execution_id = i.execution_id)"""

_SELECT: Final = "SELECT {columns} FROM {source} WHERE {conditions}"
_SPAN: Final = "{order}.created_at >= :since AND ({order}.created_at, {order}.execution_id) < (:before, :before_id)"
_PLACE: Final = "{order}.created_at AS listed_at, {order}.execution_id AS listed_id"
_NEWEST_FIRST: Final = "ORDER BY listed_at DESC, listed_id DESC LIMIT :limit"

_ENDED: Final = "i.closed_at < :before AND (i.closed_at, i.execution_id) > (:closed_at, :execution_id)"
_OLDEST_FIRST: Final = "ORDER BY closed_at, execution_id LIMIT :limit"

_DISTINCT: Final = """WITH RECURSIVE found (value) AS (
    SELECT min({column}) FROM {source} WHERE {condition}
    UNION ALL
    SELECT (SELECT min({column}) FROM {source} WHERE {condition} AND {column} > found.value)
    FROM found WHERE found.value IS NOT NULL)
SELECT value FROM found WHERE value IS NOT NULL"""
"""List the values of a column by skips through an index, so that a million rows cost no more than one."""


class Walk(msgspec.Struct, frozen=True):
    """The rows that fit a filter, in the order of a list: one or more ranges of an index.

    *source* is what follows ``FROM``, *order* the name of the table in it that has the order. The conditions of each
    range name parameters, some of which are in *values*.
    """

    source: str
    ranges: Sequence[tuple[str, ...]]
    values: Mapping[str, object] = {}
    order: str = "i"

    def statement(self, columns: str, span: str, conditions: Sequence[str], end: str) -> str:
        """Return the statement that merges the ranges, of rows that fit further conditions."""
        selects = []
        for own in self.ranges:
            others = [condition for condition in conditions if condition not in own]
            fits = " AND ".join((*own, span, *others))
            selects.append(_SELECT.format(columns=columns, source=self.source, conditions=fits))
        return f"{' UNION ALL '.join(selects)} {end}".replace("{order}", self.order)

    def fetch(self, session: Session, statement: str, parameters: Mapping[str, object]) -> Sequence[Row]:
        """Return the rows of a statement of this walk; without a range there is none."""
        return session.select(statement, {**parameters, **self.values}) if self.ranges else []


def listed(session: Session, query: r.Query, limit: int) -> Sequence[Row]:
    """Return the rows of a list, newest first; each begins with all columns of an instance."""
    before, before_id = _first(query)
    parameters: dict[str, object] = {
        "status": None if query.status is None else query.status.value,
        "kind": query.kind,
        "name": query.name,
        "failure": query.failure,
        "parent": query.parent,
        "tree_id": query.tree_id,
        "since": _MIN if query.since is None else query.since,
        "before": before,
        "before_id": before_id,
    }
    for number, (name, value) in enumerate(query.tags.items()):
        parameters |= {f"tag_{number}": name, f"value_{number}": value}
    walk = _sparsest(session, _walks(session, query), query.limit, parameters)
    tags = [_had(number) for number in range(len(query.tags)) if _tag(number) not in walk.ranges]
    statement = walk.statement(f"i.*, {_PLACE}", _SPAN, [*_conditions(query), *tags], _NEWEST_FIRST)
    return walk.fetch(session, statement, {**parameters, "limit": limit})


def ended(session: Session, query: r.EndedQuery) -> Sequence[Row]:
    """Return the rows of complete executions, in the order in which they ended."""
    index = "instances_archived" if query.archived else "instances_ended"
    kept = ("i.archived IS NOT NULL",) if query.archived else ("i.deactivated", "i.archived IS NULL")
    if query.name is not None:
        index, kept = f"{index}_named", (*kept, "i.name = :name")
    source = f"instances AS i INDEXED BY {index}"
    closed_at, execution_id = query.after or (-1, "")
    parameters = {
        "name": query.name,
        "before": query.before,
        "closed_at": closed_at,
        "execution_id": execution_id,
        "limit": query.limit,
    }
    statuses = _values(session, "i.status", source, kept, parameters) if query.status is None else [query.status.value]
    walk = _ranges(source, kept, "i.status", statuses)
    return walk.fetch(session, walk.statement("i.*", _ENDED, (), _OLDEST_FIRST), parameters)


def _first(query: r.Query) -> tuple[int, str]:
    """Return the position before which a page begins: the cursor or *until*, whichever is earlier."""
    until = (_MAX if query.until is None else query.until, "")
    if query.cursor is None:
        return until
    moment, _, execution_id = query.cursor.partition("-")
    return min(until, (int(moment), execution_id))


def _conditions(query: r.Query) -> list[str]:
    """Return what a row must fit, apart from tags."""
    wanted = (
        ("i.parent_id = :parent", query.parent),
        ("i.tree_id = :tree_id", query.tree_id),
        ("i.failure = :failure", query.failure),
        ("i.name = :name", query.name),
        ("i.kind = :kind", query.kind),
        (f"{_SHOWN} = :status", query.status),
        (_NEWEST, query.newest_only or None),
    )
    return [condition for condition, value in wanted if value is not None]


def _walks(session: Session, query: r.Query) -> Sequence[Walk]:
    """Return a walk for each filter that has an index."""
    conditions = _conditions(query)
    indexed = {
        "i.parent_id = :parent": "instances_children",
        "i.tree_id = :tree_id": "instances_tree",
        "i.failure = :failure": "instances_failed",
    }
    found = [
        Walk(f"instances AS i INDEXED BY {indexed[condition]}", [(condition,)])
        for condition in conditions
        if condition in indexed
    ]
    tagged = "instance_tags AS t CROSS JOIN instances AS i USING (execution_id)"
    found += [Walk(tagged, [_tag(number)], order="t") for number in range(len(query.tags))]
    if query.name is not None:
        found.append(_by_status(session, query, "instances_named", "i.name = :name"))
    if query.kind is not None:
        found.append(_by_status(session, query, "instances_kind", "i.kind = :kind"))
    elif query.status is not None and query.name is None:
        source, status = "instances AS i INDEXED BY instances_kind", f"{_SHOWN} = :status"
        found.append(_ranges(source, (status,), "i.kind", _values(session, "i.kind", source, ("true",), {})))
    return found or [Walk("instances AS i INDEXED BY instances_listed", [()])]


def _by_status(session: Session, query: r.Query, index: str, condition: str) -> Walk:
    """Return the walk of an index in which the status follows the column that a condition names."""
    source = f"instances AS i INDEXED BY {index}"
    if query.status is not None:
        return Walk(source, [(condition, f"{_SHOWN} = :status")])
    own = {"name": query.name, "kind": query.kind}
    return _ranges(source, (condition,), _SHOWN, _values(session, _SHOWN, source, (condition,), own))


def _values(
    session: Session, column: str, source: str, conditions: Sequence[str], parameters: Mapping[str, object]
) -> Sequence[str]:
    """Return the values of a column that an index has after those that the conditions name."""
    statement = _DISTINCT.format(column=column, source=source, condition=" AND ".join(conditions))
    return [row["value"] for row in session.select(statement, parameters)]


def _ranges(source: str, conditions: tuple[str, ...], column: str, values: Sequence[str]) -> Walk:
    """Return the walk that merges the ranges of some values of a column."""
    names = [f"range_{number}" for number in range(len(values))]
    ranges = [(*conditions, f"{column} = :{name}") for name in names]
    return Walk(source, ranges, dict(zip(names, values, strict=True)))


def _tag(number: int) -> tuple[str, ...]:
    """Return the condition of a walk through the instances with a tag."""
    return (f"t.name = :tag_{number} AND t.value = :value_{number}",)


def _had(number: int) -> str:
    """Return the condition that an instance has a tag."""
    return _HAD.format(number=number)


def _sparsest(session: Session, walks: Sequence[Walk], limit: int, parameters: Mapping[str, object]) -> Walk:
    """Return the walk with the fewest rows ahead, as far as the next entries of their indexes tell.

    A few entries show a walk that ends soon. Otherwise all walks together read about as many as the page has rows.
    """
    if len(walks) == 1:
        return walks[0]
    found = _look(session, walks, _LOOK, parameters)
    if found.ended or limit // len(walks) <= _LOOK:
        return found.walk
    return _look(session, walks, limit // len(walks), parameters).walk


class _Look(msgspec.Struct, frozen=True):
    """The walk that reaches farthest back with some entries, and whether it has no more."""

    walk: Walk
    ended: bool


def _look(session: Session, walks: Sequence[Walk], number: int, parameters: Mapping[str, object]) -> _Look:
    """Read some entries of each walk, without their rows."""

    def reach(walk: Walk) -> tuple[int, int, str]:
        statement = walk.statement(_PLACE, _SPAN, (), _NEWEST_FIRST)
        entries = walk.fetch(session, statement, {**parameters, "limit": number})
        if len(entries) < number:
            return 0, len(entries), ""
        return 1, entries[-1]["listed_at"], entries[-1]["listed_id"]

    reaches = [reach(walk) for walk in walks]
    farthest = min(reaches)
    return _Look(walks[reaches.index(farthest)], ended=farthest[0] == 0)
