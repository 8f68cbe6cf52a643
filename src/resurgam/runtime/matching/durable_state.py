"""The durable state of an execution: values by key, as `ctx.set` has recorded them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from resurgam.core import event as events


class DurableState(msgspec.Struct, eq=False):
    """The recorded value of every key, and the command that set it last."""

    values: dict[str, Any] = {}
    _changed: dict[str, int] = {}
    # Whether reads leave no record, because a query or a validator makes them.
    unrecorded: bool = False

    @contextmanager
    def unrecorded_reads(self) -> Iterator[None]:
        """Let a query or a validator read values without recording that it did."""
        self.unrecorded = True
        try:
            yield
        finally:
            self.unrecorded = False

    def get(self, key: str) -> Any | None:
        """Return the recorded value of a key, None if it is not set."""
        return self.values.get(key)

    def set(self, key: str, command: events.Command, written: Any) -> None:
        """Set the value of a key by a command."""
        self.values[key] = written
        self._changed[key] = command.seq

    def clear(self, key: str, command: events.Command) -> None:
        """Drop the value of a key by a command."""
        self.values.pop(key, None)
        self._changed[key] = command.seq

    def restore(self, checkpoint: events.Checkpoint) -> None:
        """Restore the state of a checkpoint; values recorded after it stay, such as those of an inserted step."""
        self._changed = {key: seq for key, seq in self._changed.items() if seq > checkpoint.seq}
        stays = {key: value for key, value in self.values.items() if key in self._changed}
        self.values = {key: value for key, value in checkpoint.variables.items() if key not in self._changed} | stays
