"""Rules of retention: how long closed runs are kept, by the name of their workflow and by their status.

The most specific rule decides: one with a name and a status before one with a name, that before one with a status, and that
before the general one. A run that no rule covers is kept. `plan` turns rules into passes over the ended executions.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from resurgam.core.retry import Duration, milliseconds
from resurgam.core.state import Status

CLOSED: Final = tuple(status for status in Status if status.terminal)
"""The statuses of closed runs."""

_Key: TypeAlias = tuple[str | None, Status | None]


def closed_status(status: Status | str | None) -> Status | None:
    """Return a status, None for any; refuse that of an open run."""
    if status is not None and status not in CLOSED:
        raise ValueError(f"status must be that of a closed run ({', '.join(CLOSED)}), got {status!r}")
    return None if status is None else Status(status)


class Retain(msgspec.Struct, frozen=True):
    """Keep closed runs for *age* (seconds or a timedelta) after their end; None: for ever.

    *name* and *status* say which runs: those of one workflow, in one status, both, or all. The name of a goal flow is its
    goals, joined by commas. With *dead_letters*, terminate instances that are dead letters and whose last progress is
    longer ago than *age*; they are closed then, as others are.
    """

    age: Duration | None
    name: str | None = None
    status: Status | str | None = None
    dead_letters: bool = False

    def __post_init__(self) -> None:
        if self.age is not None and milliseconds(self.age) < 1:
            raise ValueError(
                f"age must be longer than 0, got {milliseconds(self.age) / 1000:g} s; pass None to keep runs for ever"
            )
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise ValueError(f"name must be a non-empty string, got {self.name!r}; leave it out for all workflows")
        force_setattr(self, "status", closed_status(self.status))
        if not isinstance(self.dead_letters, bool):
            raise TypeError(f"dead_letters must be True or False, got {self.dead_letters!r}")
        if self.dead_letters and (self.name is not None or self.status is not None):
            raise ValueError("a rule for dead letters covers all of them; leave out its name and its status")


def rules_of(retain: Duration | Sequence[Retain]) -> tuple[Retain, ...]:
    """Return the rules of ``Engine(retain=...)``: a duration is one general rule."""
    if isinstance(retain, Retain):
        raise TypeError(f"retain must be a duration or a list of rules, got {retain!r}; put it into a list")
    if isinstance(retain, str) or not isinstance(retain, Sequence):
        return (_general(retain),)
    seen = set()
    for rule in retain:
        if not isinstance(rule, Retain):
            raise TypeError(f"retain must be a duration or a list of Retain(...) rules, got {rule!r} in the list")
        key = (rule.name, rule.status, rule.dead_letters)
        if key in seen:
            raise ValueError(f"retain must have one rule for {_covered(rule)}, got several; leave one of them")
        seen.add(key)
    return tuple(retain)


def archive_age(age: Duration, rules: Sequence[Retain]) -> int:
    """Return the age at which runs are archived, in milliseconds; it must be shorter than they are retained."""
    after = _age_in(age, "archive_after")
    if after < 1:
        raise ValueError(f"archive_after must be longer than 0, got {after / 1000:g} s")
    check_archived_first(rules, after)
    return after


def check_archived_first(rules: Sequence[Retain], archive_after: int) -> None:
    """Refuse a general rule that removes runs before they are archived; rules for some runs may mean just that."""
    for rule in rules:
        general = rule.name is None and rule.status is None and not rule.dead_letters
        if general and rule.age is not None and milliseconds(rule.age) <= archive_after:
            raise ValueError(
                f"retain must be longer than archive_after, got {timedelta(milliseconds=milliseconds(rule.age))} and "
                f"{timedelta(milliseconds=archive_after)}: runs would be removed before they are archived"
            )


def _general(retain: Any) -> Retain:
    age = _age_in(retain, "retain")
    if age < 1:
        raise ValueError(f"retain must be longer than 0, got {age / 1000:g} s; leave it out to keep every run")
    return Retain(retain)


def _age_in(duration: Duration, option: str) -> int:
    """Return an age in milliseconds; an error names the option."""
    try:
        return milliseconds(duration)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _covered(rule: Retain) -> str:
    if rule.dead_letters:
        return "dead letters"
    return f"runs{_of(rule.name, rule.status)}" if rule.name or rule.status else "all runs"


def _of(name: str | None, status: Status | str | None) -> str:
    named = "" if name is None else f" of {name!r}"
    return named if status is None else f"{named} ({status})"


class Pass(msgspec.Struct, frozen=True):
    """Remove executions that ended more than *age* milliseconds ago: of one name, in one status, of all but *skipped* names."""

    age: int
    name: str | None = None
    status: Status | None = None
    skipped: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What is removed, for a log."""
        return f"ended executions{_of(self.name, self.status)} older than {timedelta(milliseconds=self.age)}"


def dead_letter_age(rules: Iterable[Retain]) -> int | None:
    """Return after how many milliseconds without progress dead letters are terminated; None: never."""
    ages = [rule.age for rule in rules if rule.dead_letters and rule.age is not None]
    return milliseconds(ages[0]) if ages else None


def plan(rules: Iterable[Retain]) -> Sequence[Pass]:
    """Return the passes that rules lead to; together they reach every run that is to be removed, and no other.

    Passes for names come first. A pass over all names must step over runs that a rule for their name keeps longer; names
    whose runs are gone by then are not skipped, because nothing is left to step over.
    """
    ages: dict[_Key, int | None] = {
        (rule.name, None if rule.status is None else Status(rule.status)): (
            None if rule.age is None else milliseconds(rule.age)
        )
        for rule in rules
        if not rule.dead_letters
    }
    names = {name: _by_status(ages, name) for name, _ in sorted(ages, key=str) if name is not None}
    general = _by_status(ages, None)
    skipped = {
        status: frozenset(name for name, kept in names.items() if status in kept and _longer(kept[status], age))
        for status, age in general.items()
    }
    named = [one for name, kept in names.items() for one in _passes(name, kept, {})]
    return [*named, *_passes(None, general, skipped)]


def _by_status(ages: Mapping[_Key, int | None], name: str | None) -> dict[Status, int | None]:
    """Return the ages of a name by status, as far as rules for this very name say one."""
    keys = {status: (name, status) if (name, status) in ages else (name, None) for status in CLOSED}
    return {status: ages[key] for status, key in keys.items() if key in ages}


def _longer(one: int | None, other: int | None) -> bool:
    return one is None or (other is not None and one > other)


def _passes(
    name: str | None, ages: Mapping[Status, int | None], skipped: Mapping[Status, frozenset[str]]
) -> Iterable[Pass]:
    """Return one pass for all statuses if they are treated alike, otherwise one for each."""
    found = {
        status: Pass(age, name, None, skipped.get(status, frozenset()))
        for status, age in ages.items()
        if age is not None
    }
    if len(found) == len(CLOSED) and len(set(found.values())) == 1:
        return (found[CLOSED[0]],)
    return [msgspec.structs.replace(one, status=status) for status, one in found.items()]
