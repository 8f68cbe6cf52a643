"""What the code of a workflow takes for signals, told to the store so that whoever sends a wrong value hears of it.

A type that was declared for a name holds until another is, whether or not anybody listens just then: most workflows come
back to what they have listened for. It is no part of the history, and nothing in the workflow depends on it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw

from resurgam.core.codec import TypeForm
from resurgam.core.schema import schema_of


class SignalSchemas:
    """The types that were declared last, by the names of signals, as their schemas. *known* is what the store has."""

    def __init__(self, known: Mapping[str, Raw]) -> None:
        self._known: Mapping[str, Raw] = known
        self.now = dict(known)
        # Whether anything was declared that was not so before; a plain attribute, since every advance asks.
        self.changed = False

    def declare(self, names: Iterable[str], hint: TypeForm) -> None:
        """Signals of these names are read as this type from now on."""
        schema = None if hint is Any else schema_of(hint)
        for name in names:
            if schema is None:
                self.changed |= self.now.pop(name, None) is not None
            elif self.now.get(name) != schema:
                self.now[name] = schema
                self.changed = True

    def news(self) -> dict[str, Raw] | None:
        """Return it all if it is not what the store has, which it has with the next commit; else None."""
        self.changed = False
        if self.now == self._known:  # a replay goes through all that was declared before
            return None
        self._known = dict(self.now)
        return dict(self.now)
