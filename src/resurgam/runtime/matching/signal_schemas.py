"""The schemas of the signals that a workflow accepts; senders check their values against them.

A type that was declared for a name holds until another one is, even while the code does not listen: most workflows
listen for the same names again. Schemas are not part of the history, and nothing in the workflow depends on them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw

from resurgam.core.codec import TypeForm
from resurgam.core.schema import schema_of


class SignalSchemas:
    """The schema that was declared last for each name. *known* are the schemas that the store has."""

    def __init__(self, known: Mapping[str, Raw]) -> None:
        self._known: Mapping[str, Raw] = known
        self.now = dict(known)
        # Whether a declaration has changed; a plain attribute, since every advance reads it.
        self.changed = False

    def declare(self, names: Iterable[str], hint: TypeForm) -> None:
        """Declare the type of the signals of these names."""
        schema = None if hint is Any else schema_of(hint)
        for name in names:
            if schema is None:
                self.changed |= self.now.pop(name, None) is not None
            elif self.now.get(name) != schema:
                self.now[name] = schema
                self.changed = True

    def take_changes(self) -> dict[str, Raw] | None:
        """Return all schemas for the next commit, if they are not what the store has; else None."""
        self.changed = False
        if self.now == self._known:  # a replay goes through all that was declared before
            return None
        self._known = dict(self.now)
        return dict(self.now)
