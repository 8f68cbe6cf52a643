"""Plan and start goal flows, and keep the catalog of steps."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.client.access import ANY, Access, check_tags, check_text
from resurgam.client.catalog import CatalogClient
from resurgam.client.client import FlowOptions
from resurgam.client.handle import Handle
from resurgam.core import flow_event as fe
from resurgam.core.entry import NULL
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound
from resurgam.flows import model as m
from resurgam.flows import planner
from resurgam.flows.catalog import Catalog
from resurgam.flows.expressions import Expressions
from resurgam.flows.state import FlowInput
from resurgam.flows.steps import Goal, goal_ids, step_of, steps_in
from resurgam.flows.wiring import encode_plan, stored
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE
from resurgam.runtime.system import new_ids
from resurgam.store.records import Creation, Exists, Instance

Given: TypeAlias = dict[str, tuple[Raw, ...]]
"""The values that a flow starts with, by name."""

_KNOWN: Final = 1000
"""The most plans that a client keeps."""


class Flows:
    """The verbs of goal flows, on one store. *worker* is the name under which the catalog is served."""

    def __init__(self, access: Access, worker: str) -> None:
        self._access = access
        self._store = access.store
        self._catalog = CatalogClient(access, worker)
        self._plans = Plans()
        self._defined: dict[str, m.Step] = {}
        """The functions of the registry that are in the catalog, as far as this client knows."""
        self._defined_in = ""

    async def start(
        self,
        goals: Sequence[Goal],
        init: Mapping[str, object] | None,
        options: FlowOptions,
    ) -> Handle[dict[str, Any]]:
        """Start a flow and return its handle; the same id with the same goals and values gives the flow that is there."""
        entity_id, queue, tags = options.get("id"), options.get("queue"), options.get("tags")
        if entity_id is not None:
            check_text(entity_id, "id")
        if queue is not None:
            check_text(queue, "queue")
        given = self._given(init, many=options.get("many", False))
        described = self._encoded(options.get("metadata"), "metadata")
        wanted = _ids(goals)
        try:
            planned = await self._planned(wanted, given)
        except (NotFound, DefinitionError):
            # The catalog may have changed since a flow of this id was started: that one goes by its own plan.
            found = None if entity_id is None else await self._store.inspector.get(entity_id)
            if found is None or not await self._is_same(found, wanted, given):
                raise
            return Handle(self._access, found.entity_id, None, started=found)
        now = self._access.clock.now()
        run_id, execution_id, generated_id = new_ids(now)
        started = fe.FlowStarted(
            seq=1,
            at=now,
            name=fe.flow_name(planned.plan.goals),
            queue=queue or DEFAULT_QUEUE,
            entity_id=entity_id or generated_id,
            execution_id=execution_id,
            run_id=run_id,
            tree_id=run_id,
            input=Raw(msgspec.json.encode(FlowInput(planned.text, given, described))),
            tags={} if tags is None else check_tags(tags),
        )
        [answer] = await self._store.create([Creation(started=started, attach=True)])
        if isinstance(answer, Exists) and not await self._is_same(answer.instance, wanted, given):
            raise _belongs_to_another(answer.instance)
        return Handle(self._access, started.entity_id, None, started=answer.instance)

    async def plan(
        self, goals: Sequence[Goal], init: Mapping[str, object] | None, mode: planner.Mode, *, many: bool
    ) -> planner.Plan:
        """Return the plan that leads to the goals, without starting anything."""
        if mode not in ("strict", "preview"):
            raise ValueError(f"mode must be 'strict' or 'preview', got {mode!r}")
        given = self._given(init, many=many)
        return _plan(await self.catalog(), _ids(goals), given, mode, Expressions().matches)

    async def catalog(self) -> Catalog:
        """Return the catalog, with the functions of this program in it."""
        await self.define_functions()
        found = await self._catalog.read()
        if self._defined and self._catalog.execution_id != self._defined_in:
            self._defined.clear()
            await self.define_functions()
            found = await self._catalog.read()
        return found

    async def define_functions(self) -> None:
        """Put the functions of the registry that are steps into the catalog, if they are not there as they are now."""
        known = self._defined
        new = {step.id: step for step in steps_in(self._access.registry) if known.get(step.id) is not step}
        if new:
            await self._catalog.put_all(new)
            self._defined.update(new)
            self._defined_in = self._catalog.execution_id

    async def register(self, step: object) -> bool:
        """Add a step to the catalog; return False if an equal one is there."""
        await self.define_functions()
        return await self._catalog.register(step_of(step))

    async def update(self, step: object) -> bool:
        """Replace the definition of a step; return False if it is the same."""
        await self.define_functions()
        return await self._catalog.update(step_of(step))

    async def remove(self, step_id: str) -> None:
        """Remove a step from the catalog."""
        check_text(step_id, "step id")
        await self.define_functions()
        await self._catalog.remove(step_id)

    async def _planned(self, goals: Sequence[str], given: Given) -> "Planned":
        """Return the plan of a flow that can start; raise `DefinitionError` if values are missing."""
        return self._plans.find(await self.catalog(), goals, given)

    def _given(self, init: Mapping[str, object] | None, *, many: bool) -> Given:
        """Return the values of each name; without *many* there is one of each. A name without values is left out."""
        if not many:
            return {name: (value,) for name, value in self._encoded(init, "init").items()}
        for name, values in (init or {}).items():
            if not isinstance(values, list | tuple):
                raise TypeError(f"init[{name!r}] must be a list of values, got {values!r}")
        return {
            name: values
            for name, encoded in self._encoded(init, "init").items()
            if (values := msgspec.json.decode(encoded, type=tuple[Raw, ...]))
        }

    def _encoded(self, values: Mapping[str, object] | None, what: str) -> dict[str, Raw]:
        if values is None:
            return {}
        if not isinstance(values, Mapping) or not all(isinstance(name, str) and name for name in values):
            raise TypeError(f"{what} must be a mapping of names to values, got {values!r}")
        return {name: self._access.encode(value, f"{what}[{name!r}]") for name, value in values.items()}

    async def _is_same(self, found: Instance, goals: Sequence[str], init: Given) -> bool:
        """Whether an instance is a flow that was started with these goals and values."""
        if found.kind != fe.FLOW:
            return False
        [first] = await self._store.inspector.history(found, limit=1)
        assert isinstance(first, fe.FlowStarted)
        given = msgspec.json.decode(first.input, type=FlowInput)
        own = given.goals if given.plan == NULL else stored(bytes(given.plan)).plan.goals
        return set(own) == set(goals) and _are_equal(_plain(given.init), _plain(init))


def _belongs_to_another(found: Instance) -> AlreadyExists:
    what = "flow with other goals or values" if found.kind == fe.FLOW else found.kind
    return AlreadyExists(
        f"id {found.entity_id!r} belongs to another {what}, {found.name!r} ({found.status}); choose another id"
    )


class Planned(msgspec.Struct, frozen=True):
    """A plan, and its JSON."""

    plan: planner.Plan
    text: Raw


class Plans:
    """The plans of flows that were started. A plan that depends on no value is kept until the catalog changes."""

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._known: dict[tuple[tuple[str, ...], frozenset[str]], Planned] = {}

    def find(self, catalog: Catalog, goals: Sequence[str], given: Given) -> Planned:
        """Return the plan of a flow that can start; raise `DefinitionError` if values are missing."""
        if catalog is not self._catalog or len(self._known) >= _KNOWN:
            self._catalog = catalog
            self._known.clear()
        key = (tuple(goals), frozenset(given))
        known = self._known.get(key)
        return known if known is not None else self._plan(catalog, key, given)

    def _plan(self, catalog: Catalog, key: tuple[tuple[str, ...], frozenset[str]], given: Given) -> Planned:
        matches, asked = Expressions().matches, []

        def match(expression: m.Expression, value: object) -> bool:
            asked.append(expression)
            return matches(expression, value)

        plan = _plan(catalog, key[0], given, "strict", match)
        if plan.required:
            # A preview goes back to the first steps, so it names what the caller can give.
            planner.check_given(_plan(catalog, key[0], given, "preview", match))
        planner.check_given(plan)
        planned = Planned(plan, encode_plan(plan))
        if not asked:
            self._known[key] = planned
        return planned


def _plan(
    catalog: Catalog, goals: Sequence[str], given: Given, mode: planner.Mode, match: planner.Match
) -> planner.Plan:
    values = {name: tuple(ANY.decode(value, name) for value in each) for name, each in given.items()}
    return planner.plan(catalog, goals, values, mode, match)


def _plain(values: Given) -> object:
    return {name: [msgspec.json.decode(one) for one in each] for name, each in values.items()}


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are the same as JSON, where ``1`` and ``1.0`` are one number and ``true`` is none."""
    left = [(one, other)]  # not by recursion: what can be decoded may be nested more deeply than calls may
    while left:
        match left.pop():
            case dict() as a, dict() as b:
                if a.keys() != b.keys():
                    return False
                left += [(a[name], b[name]) for name in a]
            case list() as a, list() as b:
                if len(a) != len(b):
                    return False
                left += zip(a, b, strict=True)
            case a, b:
                if isinstance(a, bool) != isinstance(b, bool) or a != b:
                    return False
    return True


def _ids(goals: Sequence[Goal]) -> Sequence[str]:
    if isinstance(goals, str | bytes) or not isinstance(goals, Sequence):
        raise TypeError(f"goals must be a list of steps, such as ['ship'], got {goals!r}")
    ids = goal_ids(goals)
    for step_id in ids:
        check_text(step_id, "a goal")
    return ids
