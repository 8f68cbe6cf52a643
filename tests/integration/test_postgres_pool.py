"""Flights, repetitions and lost connections of the Postgres store, on functions made for these tests."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from resurgam.errors import StoreError, WriteRejected
from resurgam.runtime.system import SystemClock
from resurgam.store.postgres import connections, functions
from resurgam.store.postgres.functions import join
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.url import parse
from support.postgres import execute, fresh_url, own_server, run_script, shared_server
from support.wire import proxied

CALLS = (Path(functions.__file__).parent / "functions" / "shared" / "calls.sql").read_text()


def function(name, body, declared=""):
    """Return a verb that answers each part with itself, after *body*."""
    return f"""
CREATE FUNCTION {{schema}}.{name}_{{code}}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql AS $$
{declared}
BEGIN
  {body}
  RETURN QUERY SELECT ARRAY['{name}', jsonb_array_length(parts)::text], parts;
END $$;
"""


ECHO = function("echo", "")
COUNT = function(
    "count", "INSERT INTO {schema}.stored_values VALUES (parts ->> 0, '', 1) ON CONFLICT (key) DO UPDATE SET expires_at = stored_values.expires_at + 1;"
)  # fmt: skip
READ = (
    "CREATE FUNCTION {schema}.counted_{code}(name text) RETURNS bigint LANGUAGE sql STABLE AS "
    "$$ SELECT expires_at FROM {schema}.stored_values WHERE key = name $$;"
)


@asynccontextmanager
async def opened(*texts, url=None):
    address = parse(url or fresh_url())
    pool = Pool(address, SystemClock(), name="test", lease=10_000, code=join([CALLS, *(texts or (ECHO,))]))
    try:
        yield pool
    finally:
        await pool.close()


async def counted(pool, name="n"):
    [row] = await pool.fetch("counted", name)
    return row[0]


# Flights.


async def test_calls_that_wait_share_a_flight():
    async with opened() as pool:
        noted = []
        pool.notify = noted.append
        assert await asyncio.gather(*(pool.ask("echo", n) for n in range(100))) == list(range(100))
        assert noted == [["echo", "100"]]
        assert pool.flights == 1


async def test_calls_that_come_during_a_flight_share_the_next():
    async with opened(ECHO) as pool:
        await pool.ask("echo", 0)
        answered, first = [], asyncio.ensure_future(pool.ask("echo", 1))
        while pool.flights < 2:
            await asyncio.sleep(0)
        for n in range(50):
            pool.call("echo", n, answered.append)
        await first
        while len(answered) < 50:
            await asyncio.sleep(0)
        assert answered == list(range(50))
        assert pool.flights == 3


async def test_a_flight_that_is_sent_again_and_again_costs_one_round_trip_each():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, url=url) as pool:
        await pool.ask("count", "n")
        await pool.ask("count", "n")
        before = wire.round_trips
        for _ in range(10):
            await pool.ask("count", "n")
        assert wire.round_trips - before == 10


async def test_verbs_do_not_wait_for_each_other():
    slow = function("slow", "PERFORM pg_advisory_xact_lock(hashtext('{schema}'));")
    url = fresh_url()
    async with opened(ECHO, slow, url=url) as pool:
        await pool.ask("echo", 0)
        holder = await asyncpg.connect(url.partition("?")[0])
        schema = pool.address.schema
        async with holder.transaction():
            await holder.execute(f"SELECT pg_advisory_xact_lock(hashtext('\"{schema}\"'))")
            waiting = asyncio.ensure_future(pool.ask("slow", 1))
            assert await pool.ask("echo", 1) == 1
            assert not waiting.done()
        assert await waiting == 1
        await holder.close()


async def test_a_cancelled_caller_cancels_no_flight():
    async with opened(COUNT, READ) as pool:
        await pool.ask("count", "m")
        caller = asyncio.ensure_future(pool.ask("count", "n"))
        while pool.flights < 2:
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2


async def test_a_callback_that_fails_harms_no_other():
    async with opened() as pool:
        complaints, answered = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))

        def fails(_):
            raise ZeroDivisionError

        pool.call("echo", 1, fails)
        pool.call("echo", 2, answered.append)
        assert await pool.ask("echo", 3) == 3
        assert answered == [2]
        assert [type(error) for error in complaints] == [ZeroDivisionError]


async def test_a_part_that_cannot_be_written_fails_alone():
    poison = function("poison", "PERFORM 1 / (part::int) FROM jsonb_array_elements_text(parts) part;")
    async with opened(poison) as pool:
        answers = await asyncio.gather(*(pool.ask("poison", n) for n in (1, 2, 0, 3, 4)), return_exceptions=True)
        assert [answer for answer in answers if not isinstance(answer, Exception)] == [1, 2, 3, 4]
        assert isinstance(answers[2], WriteRejected)
        assert "division by zero" in str(answers[2])


async def test_parts_that_take_too_long_together_are_sent_by_themselves(monkeypatch):
    monkeypatch.setitem(connections.connect.__globals__["_SETTINGS"], "statement_timeout", "200ms")
    slow = function("slow", "PERFORM pg_sleep(0.06 * jsonb_array_length(parts));")
    async with opened(slow) as pool:
        assert await asyncio.gather(*(pool.ask("slow", n) for n in range(8))) == list(range(8))


async def test_a_flight_does_not_take_more_than_a_few_hundred_parts_along():
    async with opened(ECHO) as pool:
        noted = []
        pool.notify = noted.append
        assert await asyncio.gather(*(pool.ask("echo", n) for n in range(1000))) == list(range(1000))
        assert noted == [["echo", "500"]] * 2


async def test_a_part_that_cannot_be_encoded_fails_alone():
    async with opened() as pool:
        answers = await asyncio.gather(*(pool.ask("echo", part) for part in (1, object(), 2)), return_exceptions=True)
        assert answers[::2] == [1, 2]
        assert isinstance(answers[1], TypeError)


async def test_calls_of_a_closed_store_are_refused():
    async with opened() as pool:
        await pool.close()
        with pytest.raises(StoreError, match="closed"):
            await pool.ask("echo", 1)
        with pytest.raises(StoreError, match="closed"):
            await pool.fetch("echo")


async def test_calls_under_way_fail_when_the_store_is_closed():
    slow = function("slow", "PERFORM pg_sleep(60);")
    async with opened(slow) as pool:
        calls = [asyncio.ensure_future(pool.ask("slow", n)) for n in range(2)]
        while pool.flights < 1:
            await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(pool.ask("slow", 2)))
        await asyncio.sleep(0)
        await pool.close()
        for call in calls:
            with pytest.raises(StoreError, match="closed while this waited"):
                await call


async def test_a_closed_store_leaves_no_kept_answers():
    url = fresh_url()
    async with opened(url=url) as pool:
        await pool.ask("echo", 1)
        kept = f"SELECT owner FROM {pool.address.schema}.calls"
        assert [row["owner"] for row in await execute(kept)] == [pool.owner]
    assert await execute(kept) == []


# Other transactions.


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
async def test_a_flight_that_others_have_stopped_is_sent_again(code):
    """The function fails as long as a sequence, which no rollback sets back, has not come far enough."""
    fails = function(
        "fails", f"IF nextval('{{schema}}.turns') < 4 THEN RAISE EXCEPTION 'stopped' USING ERRCODE = '{code}'; END IF;"
    )
    async with opened(fails) as pool:
        assert await pool.ask("fails", 7) == 7
        assert pool.flights == 4


async def test_a_flight_that_others_stop_for_ever_fails(monkeypatch):
    monkeypatch.setattr("resurgam.store.postgres.pool._REPETITIONS", 3)
    fails = function("fails", "RAISE EXCEPTION 'stopped' USING ERRCODE = '40P01';")
    async with opened(fails) as pool:
        with pytest.raises(StoreError, match=r"'fails' failed: stopped \(40P01\)"):
            await pool.ask("fails", 1)
        assert pool.flights == 4


async def test_two_stores_in_a_deadlock_both_go_on():
    """Each holds what the other wants, until the server stops one of them."""
    body = """
  PERFORM pg_advisory_xact_lock(hashtext('{schema}' || (parts -> 0 ->> 0)));
  IF nextval('{schema}.turns') < 3 THEN PERFORM pg_sleep(0.2); END IF;
  PERFORM pg_advisory_xact_lock(hashtext('{schema}' || (parts -> 0 ->> 1)));
"""
    url = fresh_url()
    async with opened(function("both", body), url=url) as one, opened(function("both", body), url=url) as other:
        answers = await asyncio.gather(one.ask("both", ["a", "b"]), other.ask("both", ["b", "a"]))
        assert answers == [["a", "b"], ["b", "a"]]
        assert one.flights + other.flights == 3


async def test_a_statement_that_takes_too_long_is_given_up_by_the_server(monkeypatch):
    monkeypatch.setitem(connections.connect.__globals__["_SETTINGS"], "statement_timeout", "50ms")
    slow = function("slow", "PERFORM pg_sleep(60);")
    async with opened(slow, ECHO) as pool:
        with pytest.raises(StoreError, match="'slow' failed: canceling statement due to statement timeout"):
            await pool.ask("slow", 1)
        assert await pool.ask("echo", 1) == 1


async def test_a_full_disk_is_said_and_the_next_call_may_be_done():
    full = function(
        "full", "IF nextval('{schema}.turns') < 2 THEN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END IF;"
    )
    async with opened(full) as pool:
        with pytest.raises(StoreError, match=r"'full' failed: no space left \(53100\); the disk of the server is full"):
            await pool.ask("full", 1)
        assert await pool.ask("full", 1) == 1


async def test_a_function_that_was_removed_is_installed_again():
    async with opened(COUNT, READ) as pool:
        await pool.ask("count", "n")
        await execute(f"DROP FUNCTION {pool.address.schema}.count_{pool._library.code}")
        await pool.ask("count", "n")
        assert await counted(pool) == 2


async def test_no_store_is_made_in_place_of_one_that_was_dropped_under_load():
    async with opened(COUNT, READ) as pool:
        await pool.ask("count", "n")
        schema = pool.address.schema
        await run_script(f"ALTER SCHEMA {schema} RENAME TO {schema}_away")
        for statement in ("SELECT 1", f"CREATE SCHEMA {schema}"):
            await run_script(statement)
            with pytest.raises(StoreError, match=f"the store is gone, the schema '{schema}' was dropped; restore it"):
                await pool.ask("count", "n")
        await run_script(f"DROP SCHEMA {schema}; ALTER SCHEMA {schema}_away RENAME TO {schema}")
        await pool.ask("count", "n")
        assert await counted(pool) == 2


async def test_a_store_in_place_of_one_that_was_dropped_is_not_used():
    async with opened(COUNT, READ) as pool:
        await pool.ask("count", "n")
        schema = pool.address.schema
        await run_script(f"ALTER SCHEMA {schema} RENAME TO {schema}_away")
        with pytest.raises(StoreError, match="the store is gone"):
            await pool.ask("count", "n")
        async with opened(COUNT, READ, url=f"{shared_server().url}?schema={schema}") as other:
            await other.ask("count", "m")
            with pytest.raises(StoreError, match=f"the store is gone, another one is in the schema '{schema}' now"):
                await pool.ask("count", "m")
            assert await counted(other, "m") == 1


async def test_an_error_of_the_server_is_one_line():
    async with opened(function("two", "RAISE 'one' USING DETAIL = 'two', HINT = 'three';")) as pool:
        with pytest.raises(StoreError, match=r"'two' failed: one DETAIL: two HINT: three \(P0001\)$"):
            await pool.ask("two", 1)


async def test_text_that_postgres_cannot_store_is_said():
    async with opened() as pool:
        with pytest.raises(WriteRejected, match="Postgres stores no text with the character NUL"):
            await pool.ask("echo", "a\0b")


# Lost connections.


async def test_a_request_that_was_lost_is_sent_again():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        wire.lose_requests = 1
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2


async def test_an_answer_that_was_lost_is_read_back():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        noted = []
        pool.notify = noted.append
        await pool.ask("count", "n")
        wire.lose_replies = 1
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2
        assert noted == [["count", "1"]] * 2


async def test_an_answer_that_was_lost_twice_is_read_back():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        wire.lose_replies = 2  # also that of the look
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2


async def test_a_call_whose_kept_answer_was_deleted_says_that_it_was_done():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        find = pool._find

        async def scrub_and_find(connection, doubt):
            await pool.fetch("calls_scrub")
            return await find(connection, doubt)

        pool._find = scrub_and_find
        wire.lose_replies = 1
        with pytest.raises(StoreError, match="'count' was done, but its answer was lost"):
            await pool.ask("count", "n")
        assert await counted(pool) == 2
        assert await pool.ask("count", "n") == "n"


async def test_those_who_delete_kept_answers_at_the_same_time_do_not_stop_each_other():
    url = fresh_url()
    async with opened(COUNT, url=url) as pool, opened(COUNT, url=url) as other:
        for one in (pool, other):
            await asyncio.gather(*(one.ask("count", "n") for _ in range(5)))
        await asyncio.gather(*(one.fetch("calls_scrub") for one in (pool, other) for _ in range(20)))
        kept = await execute(f"SELECT DISTINCT answers FROM {pool.address.schema}.calls")
        assert [row["answers"] for row in kept] == ["null"]


async def test_a_request_that_arrives_after_it_was_given_up_is_not_done():
    """The first transaction still waits for a lock when its connection is cut, and is not done when it gets it."""
    waits = COUNT.replace("BEGIN", "BEGIN IF pg_try_advisory_xact_lock_shared(7) THEN NULL; ELSE PERFORM pg_advisory_xact_lock_shared(7); END IF;", 1)  # fmt: skip
    base = fresh_url()
    async with proxied(base) as (wire, url), opened(waits, READ, url=url) as pool:
        await pool.ask("count", "n")
        holder = await asyncpg.connect(base.partition("?")[0])
        await holder.execute("SELECT pg_advisory_lock(7)")
        call = asyncio.ensure_future(pool.ask("count", "n"))
        waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not (first := await holder.fetch(waiting)):
            await asyncio.sleep(0.01)
        wire.cut_all()
        while len(await holder.fetch(waiting)) < 2:
            await asyncio.sleep(0.01)
        await holder.execute("SELECT pg_advisory_unlock(7)")
        assert await call == "n"
        alive = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'"
        while await holder.fetch(alive, first[0]["pid"]):
            await asyncio.sleep(0.01)
        assert await counted(pool) == 2
        await holder.close()


@pytest.mark.parametrize("lost", ["lose_requests", "lose_replies"])
async def test_a_reading_whose_connection_was_lost_is_repeated(lost):
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        setattr(wire, lost, 1)
        assert await counted(pool) == 1


async def test_nothing_is_lost_or_done_twice_over_a_bad_line():
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        for n in range(60):
            wire.lose_requests, wire.lose_replies = n % 3 == 0, n % 3 == 1
            assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 61


async def test_a_call_fails_once_no_connection_can_be_made_for_too_long(monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    async with proxied(fresh_url()) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        wire.refuses = True
        wire.cut_all()
        with pytest.raises(StoreError):
            await pool.ask("count", "n")
        wire.refuses = False
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2


async def test_a_server_that_restarts_under_load_loses_and_repeats_nothing():
    server = own_server()
    url = f"{server.url}?schema=s"
    async with opened(COUNT, READ, url=url) as pool:
        done, stop = [], asyncio.Event()

        async def load(name):
            count = 0
            while not stop.is_set():
                await pool.ask("count", name)
                count += 1
            done.append((name, count))

        tasks = [asyncio.ensure_future(load("n"))]
        for halt in (server.stop, server.kill):
            flights = pool.flights
            while pool.flights < flights + 100:
                await asyncio.sleep(0)
            await asyncio.to_thread(halt)
            await asyncio.to_thread(server.start)
        stop.set()
        await asyncio.gather(*tasks)
        for name, count in done:
            assert await counted(pool, name) == count
    server.stop()


# The pool.


async def test_more_calls_than_connections_wait_for_their_turn():
    texts = [function(f"verb{n}", "PERFORM pg_sleep(0.01);") for n in range(8)]
    async with opened(*texts, url=fresh_url("pool=2")) as pool:
        answers = await asyncio.gather(*(pool.ask(f"verb{n % 8}", n) for n in range(16)))
        assert answers == list(range(16))
        own = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE $1"
        assert (await execute(own, f"%{pool.owner}/%"))[0][0] == 2


async def test_a_server_without_a_connection_left_is_used_over_those_that_are_there():
    server = own_server("max_connections=6", "superuser_reserved_connections=3")
    await run_script(
        "CREATE ROLE worker LOGIN PASSWORD 'w'; GRANT CREATE ON DATABASE postgres TO worker", url=server.url
    )
    url = f"postgresql://worker:w@127.0.0.1:{server.port}/postgres?schema=s"
    texts = [function(f"verb{n}", "PERFORM pg_sleep(0.01);") for n in range(6)]
    async with opened(*texts, url=url) as pool:
        assert await asyncio.gather(*(pool.ask(f"verb{n}", n) for n in range(6))) == list(range(6))
        async with opened(*texts, url=url) as other:
            with pytest.raises(StoreError, match=r"has no connection left; raise its max_connections"):
                await other.ask("verb0", 1)
    server.stop()


async def test_an_idle_connection_that_was_ended_is_replaced():
    async with opened(COUNT, READ) as pool:
        await pool.ask("count", "n")
        ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE $1"
        await execute(ended, f"%{pool.owner}/%")
        await pool.ask("count", "n")
        assert await counted(pool) == 2


# Over a pooler that hands out a connection for each transaction.


async def test_a_pooler_sees_no_named_statements_and_only_whole_transactions():
    async with proxied(fresh_url("pooler=transaction")) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        requests = wire.requests = []
        assert await pool.ask("count", "n") == "n"
        assert [request[:1] for request in requests] == [b"Q", b"P", b"P", b"Q"]
        assert requests[0][5:].startswith(b"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL")
        assert requests[1][5:6] == requests[2][5:6] == b"\0"  # the statement has no name
        assert requests[3][5:] == b"COMMIT\0"
        assert await counted(pool) == 2


async def test_a_pooler_that_the_url_does_not_name_is_said():
    async with proxied(fresh_url()) as (wire, url), opened(ECHO, url=url) as pool:
        wire.resets = True
        remedy = r'statement "\w+" does not exist \(26000\); if the server is behind PgBouncer, add pooler=transaction'
        with pytest.raises(StoreError, match=remedy):
            await pool.ask("echo", 1)


@pytest.mark.parametrize("n", range(5))
async def test_an_answer_that_was_lost_behind_a_pooler_is_read_back(n):
    async with proxied(fresh_url("pooler=transaction")) as (wire, url), opened(COUNT, READ, url=url) as pool:
        await pool.ask("count", "n")
        left = iter(range(n))
        wire.when = lambda _: next(left, None) is None
        wire.lose_replies = 1
        assert await pool.ask("count", "n") == "n"
        assert await counted(pool) == 2
