"""What a plan says about each of its steps, worked out once for all flows that follow it.

Most flows of a store follow a few plans. A plan is known by its JSON, so each is also decoded only once.
"""

from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core.retry import RetryRule
from resurgam.flows import model as m
from resurgam.flows.planner import Edge, Plan
from resurgam.flows.validate import inner_inputs

Config: TypeAlias = m.RequiredConfig | m.OptionalConfig

_KNOWN: Final = 200
"""The most plans that are kept."""

_NO_EDGE: Final = Edge()
_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode


class StepWiring(msgspec.Struct, frozen=True):
    """One step of a plan.

    *needed*: the inputs of a step that only takes the first value of each, as it is, and runs once; None for any other.
    *providers* are the steps that provide what it takes. *neighbours* are the steps about which something else may be
    decided when this one starts or ends: those that take what it provides, those that provide it too, and those that
    provide what it takes.
    """

    step: m.Step
    inputs: tuple[tuple[str, Config], ...]
    taken: dict[str, Config]
    needed: tuple[str, ...] | None
    gated: tuple[tuple[str, m.RequiredConfig], ...]
    optional: tuple[tuple[str, m.OptionalConfig], ...]
    refused: tuple[str, ...]
    constants: dict[str, Raw]
    metadata: dict[str, str]
    parameters: tuple[str, ...]
    outputs: tuple[tuple[str, m.OutputConfig], ...]
    iterated: tuple[str, ...]
    parallelism: int
    retry: RetryRule | None
    is_activity: bool
    is_goal: bool
    providers: frozenset[str]
    neighbours: frozenset[str]


class Wiring(msgspec.Struct, frozen=True):
    """A plan and its steps. *timed* are those that wait for an input until a deadline.

    *is_regular*: every step only takes first values, and no attribute has two providers. So as long as all goes well, each
    step runs as soon as its inputs are there, and nothing else is to be decided.
    """

    plan: Plan
    steps: dict[str, StepWiring]
    timed: frozenset[str]
    goals: tuple[str, ...]
    has_children: bool
    is_regular: bool


def wire(plan: Plan) -> Wiring:
    """Return the wiring of a plan."""
    steps = {step_id: _wired(plan, step) for step_id, step in plan.steps.items()}
    timed = (step_id for step_id, one in steps.items() if any(config.deadline for _, config in one.optional))
    return Wiring(
        plan=plan,
        steps=steps,
        timed=frozenset(timed),
        goals=tuple(goal for goal in plan.goals if goal in steps),
        has_children=not all(one.is_activity for one in steps.values()),
        is_regular=all(one.needed is not None for one in steps.values())
        and all(len(edge.providers) <= 1 for edge in plan.attributes.values()),
    )


def encode_plan(plan: Plan) -> Raw:
    """Return a plan as JSON, as `stored` takes it."""
    return Raw(_ENCODE(plan))


@lru_cache(maxsize=_KNOWN)
def stored(plan: bytes) -> Wiring:
    """Return the wiring of a plan, given as JSON."""
    return wire(msgspec.json.decode(plan, type=Plan))


def _wired(plan: Plan, step: m.Step) -> StepWiring:
    inputs = tuple(sorted(step.inputs.items()))
    providers = frozenset[str]().union(*(plan.attributes.get(name, _NO_EDGE).providers for name in step.inputs))
    given = [plan.attributes.get(name, _NO_EDGE) for name in step.outputs]
    constants = {
        name: Raw(one.const.value.encode()) for name, one in step.attributes.items() if isinstance(one, m.Const)
    }
    return StepWiring(
        step=step,
        inputs=inputs,
        taken=dict(inputs),
        needed=tuple(name for name, _ in inputs) if all(_is_plain(config) for _, config in inputs) else None,
        gated=tuple((name, one) for name, one in inputs if isinstance(one, m.RequiredConfig) and one.match is not None),
        optional=tuple((name, one) for name, one in inputs if isinstance(one, m.OptionalConfig)),
        refused=tuple(name for name, one in inputs if one.collect == "none" and not _is_gated(one)),
        constants=constants,
        metadata={name: one.meta.key for name, one in step.attributes.items() if isinstance(one, m.Meta)},
        parameters=tuple(sorted(inner_inputs(step))),
        outputs=tuple(sorted(step.outputs.items())),
        iterated=tuple(sorted(m.inner_name(name, config) for name, config in step.inputs.items() if config.for_each)),
        parallelism=max(step.work_config.parallelism, 1),
        retry=retry_rule(step.work_config),
        is_activity=step.type not in ("flow", "workflow"),
        is_goal=step.id in plan.goals,
        providers=providers,
        neighbours=providers.union(*((edge.providers + edge.consumers) for edge in given)) - {step.id},
    )


def _is_plain(config: Config) -> bool:
    return isinstance(config, m.RequiredConfig) and config == m.RequiredConfig()


def _is_gated(config: Config) -> bool:
    return isinstance(config, m.RequiredConfig) and config.match is not None


def retry_rule(work: m.WorkConfig) -> RetryRule | None:
    """Return how a work item is retried; None if the definition of its activity decides."""
    if work.once:
        return RetryRule(max_attempts=1)
    if not (work.max_retries or work.init_backoff or work.max_backoff or work.backoff_type):
        return None
    usual = RetryRule()
    attempts = usual.max_attempts if work.max_retries == 0 else None if work.max_retries < 0 else work.max_retries + 1
    initial = work.init_backoff / 1000 if work.init_backoff else usual.initial_interval
    return RetryRule(
        max_attempts=attempts,
        initial_interval=initial,
        max_interval=work.max_backoff / 1000 if work.max_backoff else max(usual.max_interval, initial),
        backoff=1.0 if work.backoff_type == "fixed" else usual.backoff,
        linear=work.backoff_type == "linear",
    )
