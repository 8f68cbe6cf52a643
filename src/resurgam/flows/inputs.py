"""What the inputs of a step have, while its flow runs: collected values, matches, and what can no longer come.

Everything here is a function of the state of the flow and of the moment. The time of a value is that of the commit that
recorded it, so what one result brings arrives at one time.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.flows import model as m
from resurgam.flows.errors import located
from resurgam.flows.judge import NOTHING, Judge
from resurgam.flows.planner import Edge, Gate, combined, gate_of
from resurgam.flows.state import FlowState, Provided, StepStatus
from resurgam.flows.wiring import Config, StepWiring

_NO_EDGE: Final = Edge()
_DECODE: Final = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode


class Undecided(msgspec.Struct, frozen=True):
    """An optional input that is still waited for, until a moment at most; None: its deadline does not run yet."""

    until: int | None = None


class Inputs:
    """The inputs of the steps of one flow."""

    def __init__(self, state: FlowState, judge: Judge) -> None:
        self._state = state
        self._judge = judge
        # A match is asked again whenever the flow changes, about the same values.
        self._matches: dict[tuple[m.Expression, bytes], bool] = {}

    def gate(self, step_id: str) -> Gate:
        """Return what the matches of a step say by now."""
        if not self._state.wiring.steps[step_id].gated:
            return Gate.OPEN
        return combined([gate for _, gate in self._gates(step_id)])

    def unmatched(self, step_id: str) -> Sequence[str]:
        """Return the inputs whose match can no longer hold, with no provider left that could add a value."""
        if not self._state.wiring.steps[step_id].gated:
            return ()
        return [name for name, gate in self._gates(step_id) if gate is Gate.CLOSED and self.is_final(name)]

    def unwanted(self, step_id: str) -> Sequence[str]:
        """Return the inputs of a step that starts only without a value, and that have one."""
        refused = self._state.wiring.steps[step_id].refused
        return [name for name in refused if self._state.attributes.get(name)] if refused else ()

    def impossible(self, step_id: str) -> Sequence[str]:
        """Return the required inputs that can no longer be fulfilled."""
        state, needed = self._state, self._state.wiring.steps[step_id].needed
        if needed is not None:
            return [name for name in needed if name not in state.attributes and self.is_final(name)]
        return [
            name
            for name, config in self._configs(step_id)
            if isinstance(config, m.RequiredConfig) and config.collect != "none" and self._is_impossible(name, config)
        ]

    def is_needed(self, output: str) -> bool:
        """Whether a step that has not started could still use a value of this output."""
        return any(self._could_use(consumer, output) for consumer in self._edge(output).consumers)

    def anchor(self, step_id: str) -> int | None:
        """Return when the last of the required inputs was fulfilled; None if one is not."""
        latest = self._state.started.at
        for name, config in self._configs(step_id):
            if isinstance(config, m.RequiredConfig):
                fulfilled_at = self._fulfilled_at(name, config)
                if fulfilled_at is None:
                    return None
                latest = max(latest, fulfilled_at)
        return latest

    def waits_until(self, step_id: str, now: int) -> int | None:
        """Return the next moment at which an optional input is decided by its deadline; None if none is waited for."""
        anchor = self.anchor(step_id)
        if anchor is None:
            return None
        choices = [self._choose(name, config, anchor, now) for name, config in self._optional(step_id)]
        return min((one.until for one in choices if isinstance(one, Undecided) and one.until is not None), default=None)

    def awaited(self, step_id: str, now: int) -> Sequence[tuple[str, int | None]]:
        """Return the inputs that a step waits for, each with the moment at which its deadline decides it, if that is known."""
        anchor = self.anchor(step_id)
        found: list[tuple[str, int | None]] = []
        for name, config in self._configs(step_id):
            if isinstance(config, m.RequiredConfig):
                if self._fulfilled_at(name, config) is None:
                    found.append((name, None))
            elif anchor is None:
                if config.deadline and self._fulfilled_at(name, config) is None and not self.is_final(name):
                    found.append((name, None))
            elif isinstance(choice := self._choose(name, config, anchor, now), Undecided):
                found.append((name, choice.until))
        return found

    def collect(self, step_id: str, now: int) -> Mapping[str, object] | None:
        """Return the inputs of a step under their names inside it, as JSON or decoded; None if it cannot start yet.

        Raise `ExpressionFailed` if a mapping fails.
        """
        wiring = self._state.wiring.steps[step_id]
        if wiring.needed is not None:
            return self._first_values(wiring)
        anchor = self.anchor(step_id)
        if anchor is None:
            return None
        collected: dict[str, object] = {}
        for name, config in self._configs(step_id):
            if isinstance(config, m.OptionalConfig):
                value = self._choose(name, config, anchor, now)
                if isinstance(value, Undecided):
                    return None
            else:
                value = _taken(config.collect, self._values(name, config))
            if value is not NOTHING:
                collected |= self._passed(name, config, value)
        return collected | wiring.constants

    def _first_values(self, wiring: StepWiring) -> Mapping[str, object] | None:
        """Return the inputs of a step that takes the first value of each, as it is."""
        attributes, collected = self._state.attributes, dict[str, object](wiring.constants)
        for name in wiring.needed or ():
            values = attributes.get(name)
            if values is None:
                return None
            collected[name] = values[0].value
        return collected

    def is_final(self, name: str) -> bool:
        """Whether every step that could provide an attribute is decided."""
        steps = self._state.steps
        for one in self._edge(name).providers:
            status = steps[one].status
            if status is StepStatus.PENDING or status is StepStatus.ACTIVE:
                return False
        return True

    # One input.

    def _configs(self, step_id: str) -> Sequence[tuple[str, Config]]:
        return self._state.wiring.steps[step_id].inputs

    def _optional(self, step_id: str) -> Sequence[tuple[str, m.OptionalConfig]]:
        return self._state.wiring.steps[step_id].optional

    def _edge(self, name: str) -> Edge:
        return self._state.wiring.plan.attributes.get(name, _NO_EDGE)

    def _values(self, name: str, config: Config) -> Sequence[Provided]:
        """Return the values that count for an input."""
        values = self._state.attributes.get(name, ())
        match = config.match if isinstance(config, m.RequiredConfig) else None
        return values if match is None else [one for one in values if self._does_match(name, match, one)]

    def _does_match(self, name: str, expression: m.Expression, one: Provided) -> bool:
        key = (expression, bytes(one.value))
        if key not in self._matches:
            with located(f"match of {name!r}"):
                self._matches[key] = self._judge.matches(expression, _DECODE(one.value))
        return self._matches[key]

    def _gates(self, step_id: str) -> Sequence[tuple[str, Gate]]:
        found: list[tuple[str, Gate]] = []
        for name, config in self._state.wiring.steps[step_id].gated:
            assert config.match is not None
            matches = [self._does_match(name, config.match, one) for one in self._state.attributes.get(name, ())]
            final = self.is_final(name)
            found.append((name, gate_of(config.collect, matches, final=final, complete=self._is_complete(name))))
        return found

    def _is_complete(self, name: str) -> bool:
        """Whether every provider has completed and has provided a value."""
        provided = {one.step for one in self._state.attributes.get(name, ())}
        return all(
            self._state.steps[one].status is StepStatus.COMPLETED and one in provided
            for one in self._edge(name).providers
        )

    def _is_short(self, name: str) -> bool:
        """Whether a provider is decided and has provided nothing."""
        provided = {one.step for one in self._state.attributes.get(name, ())}
        return any(self._state.steps[one].status.terminal and one not in provided for one in self._edge(name).providers)

    def _fulfilled_at(self, name: str, config: Config) -> int | None:
        values, final = self._values(name, config), self.is_final(name)
        match config.collect:
            case "first":
                return values[0].at if values else None
            case "none":
                return self._ended_at(name) if final and not values else None
            case "all" if not self._is_complete(name):
                return None
            case _:
                return max(one.at for one in values) if values and final else None

    def _ended_at(self, name: str) -> int:
        ends = [self._state.steps[one].ended_at for one in self._edge(name).providers]
        return max((end for end in ends if end is not None), default=self._state.started.at)

    def _is_impossible(self, name: str, config: m.RequiredConfig) -> bool:
        if config.collect == "all" and self._is_short(name):
            return True
        return self.is_final(name) and not self._values(name, config)

    def _could_use(self, consumer: str, output: str) -> bool:
        if self._state.steps[consumer].status is not StepStatus.PENDING or self.unmatched(consumer):
            return False
        config = self._state.wiring.steps[consumer].taken[output]
        if config.collect == "all" and self._is_short(output):
            return False
        return config.collect != "first" or not self._values(output, config)

    def _choose(self, name: str, config: m.OptionalConfig, anchor: int, now: int) -> object:
        """Return the value of an optional input, `NOTHING`, or `Undecided`.

        A value counts until the deadline. After it the decision stands, whatever comes: it is the same at any later moment.
        """
        cutoff = anchor + config.deadline
        fulfilled_at = self._fulfilled_at(name, config)
        if fulfilled_at is not None and fulfilled_at <= cutoff:
            return _taken(config.collect, self._values(name, config), _default(config))
        if fulfilled_at is None and not self.is_final(name) and now < cutoff:
            return Undecided(cutoff)
        early = [one for one in self._values(name, config) if one.at <= cutoff]
        if config.collect in ("last", "some") and early:
            return _taken(config.collect, early)
        return _default(config)

    def _passed(self, name: str, config: Config, value: object) -> dict[str, object]:
        mapping = config.mapping
        if mapping is None:
            return {name: value}
        mapped = value
        if mapping.script is not None:
            with located(f"mapping of {name!r}"):
                mapped = self._judge.map_input(mapping.script, _DECODE(_ENCODE(value)))
        return {} if mapped is NOTHING else {mapping.name or name: mapped}


def _taken(collect: m.Collect, values: Sequence[Provided], default: object = NOTHING) -> object:
    match collect:
        case "none":
            return default
        case "first":
            return values[0].value
        case "last":
            return values[-1].value
        case _:
            return [one.value for one in values]


def _default(config: m.OptionalConfig) -> object:
    return Raw(config.default.encode()) if config.default else NOTHING
