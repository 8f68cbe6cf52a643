"""A value that is written comes back as it was, with its types, live and cold; or it is refused where it is written."""

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from laws.typed_values import HINTS, Level, is_same, values_of
from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import SerializationError
from resurgam.testing import Simulation

CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


def test_a_value_comes_back_as_it_was_or_is_refused():
    counted: Counter[str] = Counter()

    @settings(max_examples=400, **CALM)
    @given(st.data())
    def law(data: Any) -> None:
        hint = data.draw(HINTS)
        codec: Codec[Any] = Codec(hint)
        value = data.draw(values_of(hint))
        try:
            written = codec.check(value)
        except SerializationError:
            counted["refused"] += 1
            return
        counted["written"] += 1
        back = codec.decode(written)
        assert is_same(value, back), f"{value!r} came back as {back!r}"
        assert bytes(codec.check(back)) == bytes(written)

    law()
    assert counted["written"] > 4 * counted["refused"] > 40, counted


class Word(str):
    """Text that is not exactly a str."""

    __slots__ = ()


LEAVES = st.sampled_from(
    [
        int,
        float,
        str,
        bool,
        type(None),
        int | None,
        int | float,
        str | bool | None,
        Annotated[int, Meta(ge=0)],
        Level,
        bytes,
    ]
)
PLAIN_HINTS = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map(lambda item: list[item])
        | inner.map(lambda item: dict[str, item])
        | inner.map(lambda item: dict[int, item])
        | inner.map(lambda item: Annotated[list[item], Meta(max_length=1)])
        | st.lists(inner, max_size=3).map(lambda items: tuple[*items])
    ),
    max_leaves=4,
)
SHALLOW = (
    LEAVES
    | LEAVES.map(lambda item: list[item])
    | LEAVES.map(lambda item: dict[str, item])
    | st.lists(LEAVES | LEAVES.map(lambda item: list[item]), max_size=2).map(lambda items: tuple[*items])
)
"""Most of what random hints are made of; they themselves are rarely as small as that."""
NEARLY_PLAIN = st.recursive(
    st.integers()
    | st.sampled_from([True, False, None, 2**63, 2**64, -(2**63) - 1, 10**400, 10**4200, Level.HIGH, Word("w")])
    | st.sampled_from([0.0, -0.0, 1.0, 1e16, 5e-324, 1.7e308, math.nan, math.inf, 0.1, b"x", UTC])
    | st.sampled_from(["", "null", "$datetime", '"$datetime"', "\ud800", "\x00", "ä", "\U0001f600"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "$datetime", Word("w"), 1, Level.LOW]), inner, max_size=2)
    ),
    max_leaves=4,
)


def misses(value: Any) -> list[Any]:
    """Return values that are nearly this one: of another type, shorter or longer, or with one item that is so."""
    found: list[Any] = [1]
    match value:
        case bool() | None:
            found = [0, ""]
        case int():
            found = [bool(value), str(value % 10)]
        case float():
            found = [math.nan, math.inf, 1]
        case str():
            found = [Word(value), value.encode("utf-8", "replace")]
        case list() | tuple():
            kind, other = (list, tuple) if isinstance(value, list) else (tuple, list)
            found = [other(value), kind(value[:-1]), kind((*value, *value[-1:], 1))]
            for n, item in enumerate(value[:3]):
                found += [kind((*value[:n], miss, *value[n + 1 :])) for miss in misses(item)]
        case dict():
            found = [list(value.items()), {1: 1, **value}, *({**value, "a": miss} for miss in misses(1))]
    return found


def test_a_value_exactly_of_a_plain_hint_is_checked_by_its_type_with_the_same_result():
    counted: Counter[bool] = Counter()

    @settings(max_examples=1000, **CALM)
    @given(hint=SHALLOW | PLAIN_HINTS, value=NEARLY_PLAIN, data=st.data())
    def law(hint: Any, value: Any, data: Any) -> None:
        fitting = st.from_type(hint)
        value = data.draw(st.just(value) | fitting | fitting.flatmap(lambda one: st.sampled_from(misses(one))))
        quick, thorough = Codec(hint), Codec(hint)
        counted[quick._exact is not None and quick._exact(value)] += 1
        thorough._exact = thorough._certain = None
        assert checked(quick, value) == checked(thorough, value), f"{hint}: {value!r}"

    law()
    assert min(counted.values()) > 30, counted


def test_what_a_hint_without_objects_reads_does_not_depend_on_marks_being_looked_for():
    counted: Counter[bool] = Counter()

    @settings(max_examples=400, **CALM)
    @given(hint=PLAIN_HINTS, value=NEARLY_PLAIN | st.just([datetime(2026, 3, 29, tzinfo=ZoneInfo("Europe/Berlin"))]))
    def law(hint: Any, value: Any) -> None:
        try:
            written = bytes(Codec(Any).encode(value))
        except SerializationError:
            return
        for data in (written, b'{"$datetime": 1}', written[:-1], b"[" + written + b"]"):
            quick, thorough = Codec(hint), Codec(hint)
            counted[quick._flat] += 1
            thorough._flat = False
            assert read(quick, data) == read(thorough, data), f"{hint}: {data!r}"

    law()
    assert min(counted.values()) > 30, counted


def read(codec: Codec[Any], data: bytes) -> str:
    """Return what is read, or why nothing is."""
    try:
        return repr(codec.decode(data))
    except SerializationError as error:
        return str(error)


def checked(codec: Codec[Any], value: Any) -> bytes | str:
    """Return how a value is written, or why it is not."""
    try:
        return bytes(codec.check(value))
    except SerializationError as error:
        return str(error)


def program_of(hint: Any, value: Any, seen: list[Any]) -> Registry:
    """Return a workflow that passes a value through an activity and its own state, and notes what it sees."""
    registry = Registry()

    async def echo(given: hint) -> hint:
        return given

    async def program(ctx: Context) -> hint:
        try:
            seen.append(await ctx.activity(activity, value))
        except SerializationError as error:
            seen.append(str(error))
            raise
        ctx.set("seen", 1)
        await ctx.sleep(1)
        return seen[-1]

    activity = registry.activity(echo)
    registry.workflow(program)
    return registry


@settings(max_examples=100, **CALM)
@given(st.data())
async def test_a_workflow_sees_the_same_value_live_and_cold(data):
    hint = data.draw(HINTS)
    value = data.draw(values_of(hint))
    live: list[Any] = []
    registry = program_of(hint, value, live)
    world = Simulation(registry.workflows.find("program"), registry=registry)
    log = await world.run()

    if isinstance(log[-2], events.WorkflowCompleted):
        assert is_same(live[-1], value)
    else:
        assert isinstance(live[-1], str)  # it was refused where it was passed
    for entry in log[1:-2]:
        cold: list[Any] = []
        again = program_of(hint, value, cold)
        resumed = Simulation(again.workflows.find("program"), log=world.as_of(entry.seq), registry=again)
        assert await resumed.run() == log
        assert is_same(cold[-1], live[-1])
