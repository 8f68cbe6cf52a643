"""Histories kept in a repository: each is replayed, and what does not fit is told as ``resurgam check`` tells it."""

import asyncio
from pathlib import Path

import pytest

from resurgam import Context, Registry
from resurgam.check.examined import Outcome
from resurgam.errors import CorruptHistory, NotFound
from resurgam.testing import Environment, histories, recorded_histories
from support.counter import Rule, start_counter

registry = Registry()


@registry.activity
async def charge(order: str) -> str:
    return order


@registry.workflow
async def checkout(ctx: Context, order: str) -> str:
    receipt = await ctx.activity(charge, order)
    await ctx.listen("arrived", type=bool)
    return receipt


other = Registry()


@other.workflow(name="checkout")
async def changed(ctx: Context, order: str) -> str:
    await ctx.sleep(1)
    receipt = await ctx.activity(charge, order)
    await ctx.listen("arrived", type=bool)
    return receipt


@other.workflow(name="looking")
async def looking(ctx: Context, order: str) -> str:
    if await ctx.v(2).activity(charge, order) == order:
        return ""
    return await checkout(ctx, order)


async def record(folder: Path) -> None:
    """Export one run that is open, and one that has ended."""
    async with Environment(registry=registry) as env:
        for order in ("open", "ended"):
            handle = await env.start(checkout, order, id=order)
            if order == "ended":
                await handle.signal("arrived", True)
                await handle.result()
            (folder / f"{order}.jsonl").write_text("\n".join(await env.engine.export(order)))
            (folder / f"{order}-events.json").write_text("\n".join(event.to_json() for event in await handle.history()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("histories")
    asyncio.run(record(folder))
    (folder / "README.md").write_text("not a history")
    return folder


def test_each_history_fits_the_code_that_wrote_it(folder):
    found = histories(folder)

    assert [str(history) for history in found] == ["ended-events", "ended", "open-events", "open"]
    assert [history.check(checkout) for history in found] == [Outcome.FITS] * 4
    assert [history.check(registry=registry) for history in found] == [Outcome.FITS] * 4


def test_what_does_not_fit_is_told_as_check_tells_it(folder):
    for history in histories(folder):
        with pytest.raises(AssertionError) as caught:
            history.check(changed)

        text = str(caught.value)
        order = str(history).partition("-")[0]
        assert text.startswith(f"{history.file}:\ncheckout: 1 run would diverge: {order}\n")
        assert f"{__file__}:" in text
        assert "    > {1}  v1  activity charge" in text
        assert "remedy: write ctx.v(2).sleep(...) at" in text
        assert "tried: it fits with it" in text


def test_what_cannot_be_told_is_no_failure(folder):
    assert {history.check(looking) for history in histories(folder)} == {Outcome.UNDECIDED}


def test_the_workflow_must_be_known(folder):
    with pytest.raises(NotFound, match="workflow 'checkout' is not registered"):
        histories(folder)[0].check(registry=Registry())


def test_a_folder_without_histories_is_refused(tmp_path):
    """A test that has nothing to replay would pass for ever."""
    with pytest.raises(NotFound, match="there are no recorded histories"):
        recorded_histories(tmp_path)


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"type":"timer_fired","seq":1,"ref":1}\n'])
def test_a_file_that_is_no_history_is_named(tmp_path, content):
    (tmp_path / "spoilt.jsonl").write_text(content)

    with pytest.raises(CorruptHistory, match=r"spoilt\.jsonl: "):
        histories(tmp_path)[0].check(checkout)


def test_a_history_of_another_kind_is_refused(tmp_path):
    """A workflow of the same name says nothing about it."""
    (tmp_path / "counted.jsonl").write_text(start_counter("c", 0, Rule(1, 1, 1), name="checkout").to_json() + "\n")

    with pytest.raises(ValueError, match=r"counted\.jsonl: must be the history of a workflow, got kind 'counter'"):
        histories(tmp_path)[0].check(registry=registry)


def test_the_fixture_is_each_of_them_in_turn(folder, pytester_like):
    assert pytester_like(folder) == ["ended-events", "ended", "open-events", "open"]


@pytest.fixture
def pytester_like():
    """Collect what a fixture is given by pytest, without starting another pytest."""

    def collect(folder: Path) -> list[str]:
        fixture = recorded_histories(folder)
        marker = getattr(fixture, "_fixture_function_marker", None) or fixture._pytestfixturefunction
        return [marker.ids(param) for param in marker.params]

    return collect
