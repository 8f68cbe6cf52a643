"""`ctx.map`: each item is found again by its key, in whatever order, however many, and whatever was left out."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.errors import ActivityFailed, HistoryDiverged, SerializationError
from resurgam.testing import Environment, ManualClock, Simulation, replay
from resurgam.testing.simulation import Follower
from vectors.event_notation import answer_of, told

BOTH = pytest.mark.parametrize("matching", ["sequence", "location"])
STYLES = pytest.mark.parametrize("style", ["activity", "function"])

registry = Registry()


@registry.activity
async def twice(item: Any) -> str:
    return f"{item}{item}"


@registry.activity
async def fail(item: Any) -> str:
    raise ValueError(item)


@registry.activity
async def thrice(item: Any) -> str:
    return f"{item}{item}{item}"


async def stepwise(ctx: Context, item: Any) -> str:
    """Two steps, so that an item may be left half-way."""
    first = await ctx.activity(twice, item)
    await ctx.activity(thrice, item)
    return first


def maps(items: Any, style: str = "activity", /, *, limit: Any = None, key: Any = None, **options: Any) -> Any:
    """Return a workflow that maps over these items."""

    async def code(ctx: Context) -> list[Any]:
        if style == "activity":
            return await ctx.map(twice, items, key=key, limit=limit)
        return await ctx.map(stepwise, items, key=key, limit=limit)

    return Registry().workflow(name="w", **options)(code)


async def written(definition: Any, log: Any = (), seed: int = 0, **world: Any) -> list[events.Event]:
    """Run a workflow to its end in a world that the seed decides."""
    chooser = random.Random(seed)
    return await Simulation(definition, log=log, registry=registry, chooser=chooser, **world).run()


def items_of(log: list[events.Event]) -> list[str]:
    """Return the keys for which an activity was begun, in order."""
    return [entry.key for entry in log if isinstance(entry, events.Command) and entry.key is not None]


# The whole of it, over random edits.

lists = st.lists(st.sampled_from("abcdefg"), max_size=6, unique=True)
limits = st.one_of(st.none(), st.integers(1, 3))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lists, lists, limits, limits, st.integers(0, 10_000), st.booleans(), st.sampled_from(["activity", "function"]))
def test_any_edit_of_the_items_gives_each_its_own_result(old, new, before, after, seed, by_type, style):
    """Reordered, inserted, dropped, with another limit, cut anywhere: no divergence, and no item's step is run twice."""
    matching = "sequence" if by_type else "location"
    asyncio.run(check_edit(old, new, (before, after), seed, matching, style))


async def check_edit(old, new, limits, seed, matching, style):
    log = await written(maps(old, style, limit=limits[0], matching=matching), seed=seed)
    end = next(entry.seq for entry in log if entry.type == "workflow_completed")
    cut = log[: random.Random(seed).randrange(2, end)] if end > 2 else log[:1]
    edited = maps(new, style, limit=limits[1], matching=matching, orphans="error")
    whole = await written(edited, cut, seed + 1)
    assert whole[: len(cut)] == cut
    assert answer_of(whole) == [item * 2 for item in new]
    steps = [(e.name, bytes(e.input)) for e in whole if isinstance(e, events.ActivityScheduled)]
    assert len(steps) == len(set(steps))
    report = await replay(edited, whole)
    assert (report.diverged, report.new, report.result) == (None, (), [item * 2 for item in new])
    orphans = {e.key for e in report.orphans if e.key is not None}
    assert orphans == {f'"{item}"' for item in old if item not in new} & set(items_of(cut))


@BOTH
@STYLES
@pytest.mark.parametrize("limit", [None, 1, 2])
async def test_a_crash_anywhere_changes_nothing(style, limit, matching):
    definition = maps("abcd", style, limit=limit, matching=matching)
    for seed in range(2):
        log = await written(definition, seed=seed)
        end = next(entry.seq for entry in log if entry.type == "workflow_completed")
        for length in range(1, end):
            world = Simulation(definition, log=log[:length], registry=registry, chooser=Follower(log))
            assert await world.run() == log


@BOTH
async def test_early_answers_wait_for_their_items(matching):
    """With a limit of one the last item was answered first; the code comes to it last now."""
    log = await written(maps("abc", matching=matching), seed=1)
    cut = [entry for entry in log if not entry.type.startswith("workflow_") or entry.seq == 1]

    report = await replay(maps("cxba", limit=1, matching=matching), cut)
    whole = await written(maps("cxba", limit=1, matching=matching), cut)

    assert report.diverged is None
    assert told(report.new) == ["Task(1)@{1} twice"]
    assert answer_of(whole) == ["cc", "xx", "bb", "aa"]


@BOTH
async def test_items_that_were_left_out_are_reported_and_never_diverge(matching, caplog):
    log = await written(maps("abc", "function", matching=matching))
    cut = log[:5]
    definition = maps("b", "function", matching=matching, orphans="warn")
    whole = await written(definition, cut)
    report = await replay(definition, whole)

    assert answer_of(whole) == ["bb"]
    assert [entry.key for entry in report.orphans] == ['"a"', '"c"']
    assert sum("is recorded, but the code does not request it" in r.getMessage() for r in caplog.records) == 2


@BOTH
async def test_items_that_were_left_out_are_cancelled_on_request(matching, caplog):
    log = await written(maps("abc", matching=matching))
    whole = await written(maps("b", matching=matching, orphans="cancel"), log[:5])

    assert [entry.ref for entry in whole if isinstance(entry, events.ActivityCancelled)] == [3, 5]
    assert whole[-1].type == "workflow_deactivated"


# Keys.


@BOTH
async def test_equal_items_are_told_apart_by_their_number(matching):
    """Also from an item that looks like such a number."""
    items = ["a", "a", "a#2", '"a"#2', 1, "1", 1, None, "null", [1], "[1]", "a"]
    definition = maps(items, matching=matching)
    log = await written(definition, seed=3)

    assert len(set(items_of(log))) == len(items)
    assert answer_of(log) == [f"{item}{item}" for item in items]
    for length in range(2, len(log) - 1):
        assert answer_of(await written(definition, log[:length], length)) == answer_of(log)


@BOTH
async def test_one_of_several_equal_items_left_out(matching):
    log = await written(maps(["a", "a", "b"], matching=matching))

    whole = await written(maps(["b", "a"], matching=matching), log[:5])

    assert answer_of(whole) == ["bb", "aa"]
    assert items_of(whole) == ['"a"', '"a"#2', '"b"']


@BOTH
async def test_a_key_function_says_what_an_item_is_known_by(matching):
    """The items change, their keys do not: what is recorded is theirs still."""

    def by_id(item: dict[str, Any]) -> str:
        return str(item["id"])

    old = [{"id": "x", "cents": 1}, {"id": "y", "cents": 2}]
    new = [{"id": "y", "cents": 20}, {"id": "x", "cents": 10}, {"id": "z", "cents": 30}]
    log = await written(maps(old, key=by_id, matching=matching))
    whole = await written(maps(new, key=by_id, matching=matching), log[:6])

    assert items_of(whole) == ["x", "y", "z"]
    assert answer_of(whole) == [f"{item}{item}" for item in (old[1], old[0], new[2])]


@pytest.mark.parametrize(
    ("items", "key", "error", "said"),
    [
        ("aab", lambda item: item, ValueError, "two items have the key 'a'"),
        ([1, 2, 11], lambda item: item % 10, ValueError, "two items have the key '1'"),
        ([object()], None, SerializationError, "the key of an item"),
        ("ab", lambda item: object(), SerializationError, "the key of an item"),
    ],
)
async def test_keys_that_are_none(items, key, error, said):
    report = await replay(maps(items, key=key), await opening())

    assert isinstance(report.error, error)
    assert said in str(report.error)


async def opening() -> list[events.Event]:
    return (await written(maps("")))[:1]


@BOTH
async def test_long_keys_are_kept_short(matching):
    items = ["x" * 100, "x" * 101, "y" * 5000]
    definition = maps(items, matching=matching)
    log = await written(definition)

    assert all(len(key) <= 64 for key in items_of(log))
    assert answer_of(await written(maps(items[::-1], matching=matching), log[:6])) == answer_of(log)[::-1]


# Limits.


@STYLES
@pytest.mark.parametrize("limit", [1, 2, 3, 99, None])
async def test_no_more_are_under_way_than_the_limit(style, limit):
    log = await written(maps("abcdefg", style, limit=limit), seed=5)
    under_way = most = 0
    for entry in log:
        under_way += isinstance(entry, events.ActivityScheduled)
        under_way -= isinstance(entry, events.ActivityCompleted)
        most = max(most, under_way)

    assert most == min(limit or 7, 7)
    assert answer_of(log) == [item * 2 for item in "abcdefg"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2"])
async def test_a_limit_that_is_none(limit):
    report = await replay(maps("ab", limit=limit), await opening())

    assert isinstance(report.error, ValueError)
    assert f"limit must be None or a whole number, at least 1, got {limit!r}" in str(report.error)


@BOTH
async def test_no_items(matching):
    log = await written(maps([], matching=matching))

    assert answer_of(log) == []
    assert (await replay(maps([], matching=matching), log)).new == ()


# Failure and cancellation.


def failing(style: str, limit: int | None, matching: str) -> Any:
    async def step(ctx: Context, item: str) -> str:
        return await ctx.activity(fail if item == "b" else twice, item)

    async def code(ctx: Context) -> list[str]:
        try:
            if style == "activity":
                return await ctx.map(fail, "bcd", limit=limit)
            return await ctx.map(step, "abcd", limit=limit)
        except ActivityFailed as error:
            return ["failed", str(error.cause), await ctx.activity(twice, "after")]

    return Registry().workflow(name="w", matching=matching)(code)


@BOTH
@STYLES
@pytest.mark.parametrize("limit", [None, 1, 2])
async def test_the_first_failure_ends_the_rest(style, limit, matching):
    """What is under way is called off, what is not is not begun; a crash anywhere changes nothing."""
    definition = failing(style, limit, matching)
    for seed in range(2):
        log = await written(definition, seed=seed)
        assert answer_of(log)[0] == "failed"
        assert answer_of(log)[2] == "afterafter"
        end = next(entry.seq for entry in log if entry.type == "workflow_completed")
        failed = next(entry.seq for entry in log if entry.type == "activity_failed")
        behind = [entry for entry in log[failed:] if isinstance(entry, events.ActivityScheduled)]
        assert [entry.input for entry in behind] == [behind[0].input]
        for length in range(1, end):
            world = Simulation(definition, log=log[:length], registry=registry, chooser=Follower(log))
            assert (await world.run())[:end] == log[:end]


@BOTH
@STYLES
async def test_a_map_that_is_cancelled_cancels_its_items(style, matching):
    async def code(ctx: Context) -> str:
        mapping = ctx.map(twice if style == "activity" else stepwise, "abc", limit=2)
        await ctx.listen("go")
        mapping.cancel()
        try:
            await mapping
        except asyncio.CancelledError:
            return await ctx.activity(thrice, "x")
        return "not cancelled"

    class Telling:
        def choice(self, seq: Any) -> Any:
            return next((possible for possible in seq if possible.kind == "message"), seq[0])

    definition = Registry().workflow(name="w", matching=matching)(code)
    messages = [events.SignalReceived(name="go", id="1")]
    world = Simulation(definition, registry=registry, chooser=Telling(), messages=messages)
    log = await world.run()

    assert [entry.type for entry in log].count("activity_cancelled") == 2
    assert answer_of(log) == "xxx"
    assert (await replay(definition, log)).new == ()


@BOTH
@pytest.mark.parametrize("limit", [None, 1])
async def test_an_item_that_cannot_be_begun_fails_the_map(limit, matching):
    """Behind a limit too, where it is begun in the wake of another one."""

    async def code(ctx: Context) -> str:
        try:
            await ctx.map(twice, ["a", object(), "c"], key=str, limit=limit)
        except SerializationError as error:
            return str(error)
        return "begun"

    definition = Registry().workflow(name="w", matching=matching)(code)
    log = await written(definition)

    assert "item" in answer_of(log)
    assert [entry.type for entry in log].count("activity_scheduled") == 1
    assert (await replay(definition, log)).new == ()


# Maps in maps, and maps that were changed.


@BOTH
async def test_maps_in_maps(matching):
    def nested(groups: list[str], limit: int | None) -> Any:
        async def group(ctx: Context, items: str) -> list[str]:
            return await ctx.map(twice, items, limit=limit)

        async def code(ctx: Context) -> list[list[str]]:
            return await ctx.map(group, groups, key=lambda items: items[0], limit=limit)

        return Registry().workflow(name="w", matching=matching)(code)

    log = await written(nested(["abc", "def"], None), seed=2)
    for length in range(2, len(log) - 2):
        whole = await written(nested(["fg", "dxf", "cba", "acb"], 2), log[:length], length)
        assert answer_of(whole) == [["ff", "gg"], ["dd", "xx", "ff"], ["cc", "bb", "aa"], ["aa", "cc", "bb"]]


@BOTH
async def test_another_activity_for_the_same_item_is_a_divergence_that_names_its_place(matching):
    async def code(ctx: Context) -> list[str]:
        return await ctx.map(thrice, "ba")

    log = await written(maps("ab", matching=matching))
    report = await replay(Registry().workflow(name="w", matching=matching)(code), log)

    assert type(report.diverged) is HistoryDiverged
    assert str(report.diverged.location) == "{1, 2}"
    assert (report.diverged.code_value, report.diverged.history_value) == ("thrice", "twice")


@BOTH
async def test_items_that_are_not_known_yet_do_not_look_like_a_divergence(matching):
    """A rehearsal has only a stand-in for what a new step gives; a map over it says nothing."""

    async def code(ctx: Context) -> list[str]:
        extra = await ctx.v(2).activity(twice, "new")
        return await ctx.map(twice, ["a", extra, "b"])

    log = (await written(maps("ab", matching=matching)))[:5]
    world = Simulation(Registry().workflow(name="w", matching=matching)(code), log=log, registry=registry)
    whole = await world.run()

    assert world.status is Status.COMPLETED
    assert answer_of(whole) == ["aa", "newnewnewnew", "bb"]


@BOTH
async def test_on_a_store_items_are_changed_while_they_run(matching, tmp_path):
    ran: list[str] = []
    clock = ManualClock()

    def build(items: str) -> Registry:
        own = Registry()

        @own.activity(name="work")
        async def work(item: str) -> str:
            ran.append(item)
            return item * 2

        async def step(ctx: Context, item: str) -> str:
            done = await ctx.activity(work, item)
            await ctx.listen(f"go {item}")
            return done

        @own.workflow(matching=matching)
        async def w(ctx: Context) -> list[str]:
            return await ctx.map(step, items, limit=2)

        return own

    place = {"store": f"sqlite:///{tmp_path}/w.db", "clock": clock}
    async with Environment(**place, registry=build("abc")) as env:
        await env.start("w", id="x")
    async with Environment(**place, registry=build("dca")) as env:
        handle = env.engine.handle("x")
        for item in "acd":
            await handle.signal(f"go {item}")
        assert await env.finish(handle.result()) == ["dd", "cc", "aa"]
    assert sorted(ran) == ["a", "b", "c", "d"]
