"""Verification of code against a history without a worker, and the remedies for divergences."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.edit import Check, Insert, Remove, merge_edits
from resurgam.core.location import ROOT
from resurgam.runtime.rehearsal import rehearsal
from resurgam.runtime.rehearsal.rehearsal import Rehearsal, find_remedy, is_remedy, rehearse
from resurgam.runtime.rehearsal.verify import verify
from resurgam.testing import Environment, replay

registry = Registry()
for _name in "abcd":

    @registry.activity(name=_name)
    async def _echo() -> int:
        return 1


def workflow(function: Any) -> Any:
    return registry.copy().workflow(name="w")(function)


async def recorded(function: Any) -> list[events.Event]:
    """Return the history of a run that waits for a signal."""
    own = registry.copy()
    code = own.workflow(name="w")(function)
    async with Environment(registry=own) as env:
        handle = await env.start(code)
        await env.advance(100)
        return [*await handle.history()]


async def old(ctx: Context) -> None:
    for name in "abc":
        await ctx.activity(name)
    await ctx.listen("go")


async def test_verify_accepts_code_that_fits_or_continues():
    log = await recorded(old)

    assert verify(workflow(old), log).fits
    further = verify(workflow(old), log[:3])
    assert (further.fits, [entry.name for entry in further.new]) == (True, ["b"])


async def test_a_divergence_has_a_remedy_unless_disabled():
    async def new(ctx: Context) -> None:
        await ctx.activity("a")
        await ctx.activity("d")
        await ctx.activity("b")
        await ctx.activity("c")
        await ctx.listen("go")

    log = await recorded(old)
    with_remedy, without = verify(workflow(new), log), verify(workflow(new), log, remedy=False)

    assert with_remedy.diverged is not None
    assert [str(edit)[:28] for edit in with_remedy.diverged.remedy or ()] == ["write ctx.v(2).activity(d, ."]
    assert without.diverged is not None
    assert without.diverged.remedy is None
    assert [entry.name for entry in without.orphans] == ["b", "c", "go"]


@pytest.mark.parametrize("known", [True, False])
async def test_a_rehearsal_leaves_nothing_behind_whatever_its_code_records(monkeypatch, known):
    """The garbage collector does not look into events, nor into other structs without cycles."""

    async def sets(ctx: Context) -> None:
        value = await ctx.v(2).activity("d")
        ctx.v(2).set("key", 1 if known else value)
        await old(ctx)

    made: list[weakref.ref[Any]] = []

    class Watched(Rehearsal):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(weakref.ref(self))

    monkeypatch.setattr(rehearsal, "Rehearsal", Watched)
    log = await recorded(old)
    assert verify(workflow(sets), log).fits
    gc.collect()
    assert [ref() for ref in made] == [None]


async def test_a_rehearsal_distinguishes_return_divergence_and_inspection():
    async def comes_back(ctx: Context) -> None:
        await ctx.v(2).activity("d")
        await old(ctx)

    async def does_not(ctx: Context) -> None:
        await ctx.v(2).activity("d")
        await ctx.activity("c")

    async def looks(ctx: Context) -> None:
        if await ctx.v(2).activity("d"):
            await old(ctx)

    log = await recorded(old)
    undecided = verify(workflow(looks), log)

    assert verify(workflow(comes_back), log).fits
    assert verify(workflow(does_not), log).diverged is not None
    assert (undecided.fits, undecided.diverged) == (False, None)
    assert undecided.undecided is not None
    assert undecided.undecided.source.startswith(f"{__file__}:")
    assert (await replay(workflow(looks), log)).undecided
    assert not (await replay(workflow(comes_back), log)).undecided
    assert (await replay(workflow(does_not), log)).diverged is not None


async def test_removals_without_effect_and_errors_at_the_end_are_reported():
    async def new(ctx: Context) -> None:
        await ctx.removed.activity("d")
        await ctx.activity("a")
        raise TypeError("no")

    log = await recorded(old)
    finding = verify(workflow(new), log[:3])

    assert [entry.name for entry in finding.ignored] == ["d"]
    assert isinstance(finding.error, TypeError)


@pytest.mark.parametrize("by_line", [False, True])
async def test_several_steps_removed_in_a_row_have_a_remedy(by_line):
    async def new(ctx: Context) -> None:
        await ctx.activity("a")
        await ctx.listen("go")

    log = await recorded(old)
    code = workflow(new)
    found = verify(code, log, remedy=False).diverged
    assert found is not None

    remedy = find_remedy(code, log, found, by_line=by_line)

    assert [(type(edit), edit.name) for edit in remedy] == [(Remove, "b"), (Remove, "c")]


@pytest.mark.parametrize("by_line", [False, True])
async def test_steps_removed_at_the_end_have_a_remedy(by_line):
    """A removal at the end is tried in the scope that ends, whichever scope is running then."""

    async def before(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.activity("a")
            await ctx.activity("b")
            await ctx.activity("c")

        await ctx.branch(part)
        await ctx.listen("go")

    async def after(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.activity("a")

        await ctx.branch(part)
        await ctx.listen("go")

    log, code = await recorded(before), workflow(after)
    found = verify(code, log, remedy=False).diverged
    assert found is not None

    remedy = find_remedy(code, log, found, by_line=by_line)

    assert [(str(edit.scope), edit.name) for edit in remedy] == [("{1}", "b"), ("{1}", "c")]
    assert not is_remedy(rehearse(code, log, remedy[:1], by_line=by_line))


async def test_a_line_that_runs_repeatedly_is_one_edit():
    async def before(ctx: Context) -> None:
        for _ in range(4):
            await ctx.activity("a")
        await ctx.listen("go")

    async def after(ctx: Context) -> None:
        for _ in range(4):
            await ctx.activity("a")
            await ctx.activity("b")
        await ctx.listen("go")

    log, code = await recorded(before), workflow(after)
    found = verify(code, log, remedy=False).diverged
    assert found is not None

    assert len(find_remedy(code, log, found, by_line=True)) == 1
    assert len(find_remedy(code, log, found)) == 4


async def test_edits_by_line_are_found_in_branches_too():
    async def before(ctx: Context) -> None:
        async def part(number: int) -> None:
            await ctx.activity("a")

        await asyncio.gather(*map(part, range(3)))
        await ctx.listen("go")

    async def after(ctx: Context) -> None:
        async def part(number: int) -> None:
            await ctx.activity("b")
            await ctx.activity("a")

        await asyncio.gather(*map(part, range(3)))
        await ctx.listen("go")

    log, code = await recorded(before), workflow(after)
    found = verify(code, log, remedy=False).diverged
    assert found is not None

    [edit] = find_remedy(code, log, found, by_line=True)

    assert isinstance(edit, Insert)
    assert (edit.verb, edit.name, edit.version) == ("activity", "b", 2)


def test_merged_edits_keep_the_highest_version_of_a_line():
    def insert(version: int, source: str = "f:1", name: str = "a") -> Insert:
        return Insert(scope=ROOT, call=version, version=version, verb="activity", name=name, source=source)

    gone = Remove(scope=ROOT, call=0, kind="timer_started", verb="sleep", source="f:1")
    check = Check(scope=ROOT, call=0, version=1, source="f:1")

    assert merge_edits([insert(2), insert(4), insert(3)]) == (insert(4),)
    assert merge_edits([insert(2), gone, gone, check, insert(2, "f:2"), insert(2, name="b")]) == (
        *(insert(2), gone, check, insert(2, "f:2"), insert(2, name="b")),
    )
