import asyncio

import pytest

from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.redis.library import library as real_library
from resurgam.store.redis.link import Link
from resurgam.store.redis.url import parse
from resurgam.testing import ManualClock
from support.lua import library
from support.redis import fresh_url

__all__ = ["library"]
pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
async def link():
    link = Link(parse(fresh_url()), SystemClock(), name="test", lease=1000)
    yield link
    await link.close()


async def test_an_answer_comes_back_as_it_was_sent(link):
    assert await link.ask(0, "echo", "a") == b"a"
    assert await link.ask(3, "echo", [1, "zwei", None]) == [1, b"zwei"]  # an array ends at the first nil


async def test_an_answer_that_is_nil_is_none(link):
    assert await asyncio.gather(*(link.ask(0, "nothing", n) for n in range(3))) == [None] * 3


async def test_an_answer_of_one_to_every_part_reaches_each(link):
    assert await asyncio.gather(*(link.ask(0, "quietly", 1) for _ in range(3))) == [1] * 3
    assert await asyncio.gather(*(link.ask(0, "quietly", n) for n in (1, 2, 1))) == [1, 2, 1]


async def test_calls_that_wait_together_share_one_flight_and_one_function_call(link):
    await link.ask(0, "echo", "opened")
    before = link.flights
    totals = await asyncio.gather(*(link.ask(partition, "count", 0) for partition in range(4) for _ in range(5)))
    assert totals == [5] * 20
    assert link.flights == before + 1


async def test_calls_made_during_a_flight_go_together_in_the_next(link):
    await link.ask(0, "echo", "opened")
    before, totals, both = link.flights, [], asyncio.Event()

    def counted(answer):
        totals.append(answer)
        if len(totals) == 3:
            both.set()

    def first(_):
        link.call(0, "count", 0, counted)
        link.call(0, "count", 0, counted)
        link.call(0, "count", 0, counted)

    link.call(0, "echo", "first", first)
    await both.wait()
    assert totals == [3] * 3
    assert link.flights == before + 2


async def test_a_call_that_leaves_at_once_does_not_wait_for_others_of_the_turn(link):
    await link.ask(0, "echo", "opened")
    before, totals, all_ = link.flights, [], asyncio.Event()

    def counted(answer):
        totals.append(answer)
        if len(totals) == 3:
            all_.set()

    for _ in range(3):
        link.call(0, "count", 0, counted, at_once=True)
    assert link.flights == before + 1
    await all_.wait()
    assert totals == [1, 3, 3]
    assert link.flights == before + 2


async def test_the_first_calls_share_the_opening(link):
    assert await asyncio.gather(*(link.ask(n, "echo", n) for n in range(16))) == list(range(16))


async def test_notices_reach_the_callback_with_their_partition(link):
    noted = []
    link.notify = lambda partition, notices: noted.append((partition, notices))
    await asyncio.gather(link.ask(2, "echo", "a"), link.ask(2, "echo", "b"))
    assert noted == [(2, [b"work", b"default", b"work", b"default"])]


async def test_every_partition_is_asked(link):
    answers = await link.ask_all("tell", 0)
    assert [answer[3].decode() for answer in answers] == list(link.keys)


async def test_a_function_is_told_lease_and_owner(link):
    _, lease, owner, _ = await link.ask(0, "tell", 0)
    assert (lease, owner) == (b"1000", link.owner.encode())


async def test_a_manual_clock_gives_the_moment():
    clock = ManualClock()
    link = Link(parse(fresh_url()), clock, name="test", lease=1000)
    try:
        answer = await link.ask(0, "tell", 0)
        assert int(answer[0]) == clock.now()
    finally:
        await link.close()


async def test_the_error_of_a_function_fails_its_parts_only(link):
    failed, fine = await asyncio.gather(
        link.ask(0, "echo", "fail"), link.ask(1, "echo", "fine"), return_exceptions=True
    )
    assert isinstance(failed, StoreError)
    assert "this part fails" in str(failed)
    assert fine == b"fine"


async def test_a_function_that_leaves_out_an_answer_fails_all_parts(link):
    with pytest.raises(StoreError, match="gave 0 answers to 1 parts"):
        await link.ask(0, "count", None)  # a part that is nil is none to Lua


async def test_a_part_that_cannot_be_encoded_fails_its_call_only(link):
    failed, fine = await asyncio.gather(
        link.ask(0, "echo", object()), link.ask(1, "echo", "fine"), return_exceptions=True
    )
    assert isinstance(failed, TypeError)
    assert fine == b"fine"
    with pytest.raises(TypeError):
        await link.ask(0, "echo", object())
    assert await link.ask(0, "echo", "again") == b"again"


async def test_a_callback_that_fails_does_not_hold_up_others(link):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    link.call(0, "echo", "a", lambda _: 1 / 0)
    assert await link.ask(0, "echo", "b") == b"b"
    assert isinstance(reported[0], ZeroDivisionError)


async def test_a_cancelled_call_does_not_shift_the_answers_of_others(link):
    await link.ask(0, "echo", "opened")
    for number in range(50):
        cancelled = asyncio.create_task(link.ask(0, "echo", f"cancelled {number}"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await link.ask(0, "echo", number) == number


async def test_a_failure_while_the_store_is_opened_reaches_every_call_and_the_next_one_tries_again(link):
    async def fail():
        raise ZeroDivisionError

    link.on_open = fail
    answers = await asyncio.gather(link.ask(0, "echo", 1), link.ask(1, "echo", 2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 2
    link.on_open = None
    assert await link.ask(0, "echo", 3) == 3


async def test_a_closed_link_refuses_calls_and_fails_those_that_wait(link):
    waiting = asyncio.create_task(link.ask(0, "echo", "a"))
    await asyncio.sleep(0)
    await link.close()
    with pytest.raises(StoreError, match="closed"):
        await waiting
    with pytest.raises(StoreError, match="closed"):
        await link.ask(0, "echo", "b")


def test_the_partition_of_a_promise_is_that_of_its_entity():
    link = Link(parse("redis://localhost"), SystemClock(), name="test", lease=1000)
    from resurgam.core.identity import route_of

    assert link.partition_of_route(f"{route_of('order-7')}-abc") == link.partition_of("order-7")
    assert link.partition_of_route("no route") is None
    assert link.partition_of_route("12") is None


def test_the_library_of_this_version_can_be_joined():
    made = real_library()
    assert made.text.startswith(f"#!lua name={made.name}\n")
