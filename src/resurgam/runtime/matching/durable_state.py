"""The durable state of an execution: values by key, as the code has set them so far."""

from typing import Any

from resurgam.core import event as events


class DurableState:
    """Keep the recorded value of every key, and which command set it last."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._changed: dict[str, int] = {}

    def set(self, key: str, command: events.Command, written: Any) -> None:
        """Give a key another value, from this command on."""
        self.values[key] = written
        self._changed[key] = command.seq

    def clear(self, key: str, command: events.Command) -> None:
        """Drop the value of a key, from this command on."""
        self.values.pop(key, None)
        self._changed[key] = command.seq

    def restore(self, checkpoint: events.Checkpoint) -> None:
        """Take the state of a checkpoint; what was recorded after it stays, such as a step put before the loop."""
        self._changed = {key: seq for key, seq in self._changed.items() if seq > checkpoint.seq}
        stays = {key: value for key, value in self.values.items() if key in self._changed}
        self.values = {key: value for key, value in checkpoint.variables.items() if key not in self._changed} | stays
