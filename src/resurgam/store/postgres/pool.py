"""The way from the verbs of a store to its functions: flights, repetitions, and what becomes of lost answers.

Calls of one verb that wait while a flight of it is under way go together in the next one: one function call, one round trip,
one transaction. Different verbs are under way at the same time.

A flight that the server has rolled back because of other transactions is sent again. One whose connection was lost has an
unknown outcome, until it is read back: a verb that writes keeps its answers in the table ``calls``, in its own transaction.
If they are there, it was done. If not, it was not, and it is given up so that it never will be; then it is sent again.

To keep answers costs a write. A verb that can be repeated does without: it only reads, or it answers what was done already in
the same way.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec

from resurgam.core.clock import Clock, is_system
from resurgam.core.errors import StoreError
from resurgam.store.lifetime import Lifetime
from resurgam.store.postgres.connection import Connection
from resurgam.store.postgres.connections import PATIENCE, Connections
from resurgam.store.postgres.errors import Fault, depends_on_parts, failed, fault, unknown
from resurgam.store.postgres.functions import Library, library
from resurgam.store.postgres.migrate import Meta, migrations
from resurgam.store.postgres.opening import open_schema
from resurgam.store.postgres.statements import statement
from resurgam.store.postgres.url import Address

Done = Callable[[Any], None]
"""Called with the answer to a part, or with the exception that came instead."""

Arguments = Callable[[list[Any]], tuple[Any, ...]]
"""Returns the arguments of a function for the parts of a flight, after moment, lease and owner."""

_CLOSED: Final = "the store was closed while this waited"

_PARTS: Final = 500
"""The most parts of a flight: a transaction stays short, and leaves few versions of a row that all of them change."""

_REPETITIONS: Final = 20
"""How often a flight is repeated that other transactions have stopped."""

_PAUSE: Final = 0.005
"""Seconds, at most, before the first repetition; each doubles it."""

_LONGEST_PAUSE: Final = 0.5

_OPENING: Final = 60.0
"""Seconds for which the opening is repeated that other transactions have stopped."""

_LOST: Final = 3
"""How often the opening is repeated because its connection was lost."""

_FORGET: Final = 1.0
"""Seconds for the farewell of a store that is closed."""

_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode


def as_json(parts: list[Any]) -> tuple[Any, ...]:
    """Return parts as one JSON array, the argument of most functions."""
    return (_encode(parts).decode(),)


class Verb(msgspec.Struct, frozen=True):
    """How a function is called."""

    text: str
    arguments: Arguments = as_json
    keeps: bool = True
    """Whether it keeps its answers until the next call, so that it can be known whether it was done."""

    recognises: bool = False
    """Whether its last argument is whether it may have been done before: then it finds out by itself."""

    alone: "Verb | None" = None
    """How a flight with one part is called, if by a function of its own."""

    reads: bool = False
    """Whether it is a statement that only reads: each of its rows begins with the number of the part that it answers."""


class Flight:
    """One function call, and what has become of it so far."""

    __slots__ = ("arguments", "doubt", "keeps", "lost", "name", "patient_until", "reads", "repetitions", "text")

    def __init__(
        self,
        name: str,
        text: str,
        arguments: Callable[[Connection], Sequence[object]],
        *,
        keeps: bool = False,
        reads: bool = False,
    ) -> None:
        self.name = name
        self.text = text
        self.arguments = arguments
        self.keeps = keeps
        self.reads = reads
        self.lost = False
        """Whether a connection was lost on which it was sent."""

        self.repetitions = 0
        self.patient_until = 0.0
        """Until when it is sent again over other connections; 0 as long as none was lost."""

        self.doubt: tuple[int, int] | None = None
        """The connection that was lost and the number of the call on it, until it is known whether it was done."""

    @property
    def in_doubt(self) -> bool:
        """Whether it may have been done."""
        return self.lost and not self.reads


class Pool:
    """The connections of one open store. Nothing is sent before the first call."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        name: str,
        lease: int,
        code: Library | None = None,
        steps: tuple[str, ...] | None = None,
    ) -> None:
        self.address = address
        self.owner = f"{name}-{token_hex(4)}"
        """The name of this open store: the owner of its leases."""

        self.store_id = ""
        """The id that the store got when it was created; known once it is open."""

        self.notify: Callable[[Sequence[str]], None] = lambda _: None
        """Called with the notices of each flight: a kind, a value, a kind, a value..."""

        self.on_open: Callable[[], Awaitable[None]] | None = None
        """Awaited once the tables are there, before the first calls are sent."""

        self.after_fork: Callable[[], None] | None = None
        """Called in a fork of the process that opened the store."""

        self.lifetime = Lifetime(after_fork=self._leave_behind)
        self.flights = 0
        """The number of function calls that were sent."""

        self._lease = lease
        self._moment: Callable[[], int | None] = (lambda: None) if is_system(clock) else clock.now
        self._library = code or library()
        self._steps = migrations() if steps is None else steps
        self._verbs: dict[str, Verb] = {}
        self._waiting: dict[str, list[tuple[Any, Done]]] = {}
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connections = Connections(address, self.owner)
        self._opening: asyncio.Task[None] | None = None
        self._open = False

    # The calls of the verbs.

    def verb(
        self,
        verb: str,
        arguments: Arguments = as_json,
        *,
        keeps: bool = True,
        recognises: bool = False,
        alone: Arguments | None = None,
    ) -> Verb:
        """Say how a verb is called, if not with its parts as one JSON array.

        A verb that is idempotent, or only reads, need not keep its answers: it is repeated if they are lost. Nor need one that
        *recognises* what it has done before. One part is given to a function of its own if there are arguments for it *alone*.
        """
        by_itself = None if alone is None else self.verb(f"{verb}_alone", alone, keeps=keeps, recognises=recognises)
        keeps = keeps and not recognises
        count = 3 + len(arguments([])) + recognises
        places = ", ".join(f"${n}" for n in range(1, count + 1))
        text = f"SELECT a.notices, a.answers FROM {{schema}}.{verb}_{{code}}({places}) a"  # noqa: S608 -- the names are our own
        if keeps:
            kept = f"{{schema}}.calls_keep_{{code}}($3, ${count + 1}, ${count + 2}, a.notices, a.answers)"
            text = text.replace("a.answers FROM", f"a.answers, {kept} FROM")
        known = Verb(self._library.in_schema(text, self.address.schema), arguments, keeps, recognises, by_itself)
        self._verbs[verb] = known
        return known

    def reader(self, verb: str, name: str, arguments: Arguments) -> None:
        """Say that a verb is a statement of `reads.sql`. The answer to a part are its rows, without their number.

        So an answer may be as large as a log: one value of a function is not.
        """
        self._verbs[verb] = Verb(statement(name, self.address.schema), arguments, keeps=False, reads=True)

    def call(self, verb: str, part: object, done: Done) -> None:
        """Add a part to the next flight of a verb; *done* gets its answer, or an exception, outside of any task."""
        if self.lifetime.refusal is not None:
            done(StoreError(self.lifetime.refusal))
            return
        waiting = self._waiting.get(verb)
        if waiting is not None:
            waiting.append((part, done))
            return
        self._waiting[verb] = [(part, done)]
        if verb not in self._under_way:
            self._under_way.add(verb)
            self._spawn(self._fly(verb), f"postgres {verb}")

    async def ask(self, verb: str, part: object) -> Any:
        """Return the answer to a part."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call(verb, part, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(self, function: str, *arguments: object) -> list[Any]:
        """Return the rows of a function that only reads, or may be repeated."""
        self.lifetime.check()
        return await self._read(function, self._library.call(self.address.schema, function, len(arguments)), arguments)

    async def select(self, name: str, *arguments: object, **parts: str) -> list[Any]:
        """Return the rows of a statement of `reads.sql`; *parts* are put where their names stand in braces."""
        self.lifetime.check()
        return await self._read(name, statement(name, self.address.schema, **parts), arguments)

    async def _read(self, name: str, text: str, arguments: Sequence[object]) -> list[Any]:
        flight = Flight(name, text, lambda _: arguments, reads=True)
        # Reads go over several connections, but return in the order of their calls: what a program does after one read, such
        # as a delivery, comes before what it does after the next one like it.
        before = self._turns.get(name)
        turn = self._turns[name] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(lambda turn: self._forget_turn(name, turn))
        try:
            rows: list[Any] = await _wait_for(self._spawn(self._perform(flight), f"postgres {name}"))
            if before is not None and not before.done():
                await asyncio.wait([before])
            return rows
        finally:
            if before is None or before.done():
                turn.set_result(None)
            else:  # given up or failed: those behind still wait for those before
                before.add_done_callback(lambda _: turn.set_result(None))

    def _forget_turn(self, name: str, turn: "asyncio.Future[None]") -> None:
        if self._turns.get(name) is turn:
            del self._turns[name]

    async def connect(self) -> Any:
        """Return a new connection of the client library that is the caller's own, once the store is open."""
        self.lifetime.check()
        await self._opened()
        return (await self._connections.connect()).raw

    @property
    def busy(self) -> bool:
        """Whether calls wait or are under way."""
        return bool(self._tasks)

    async def close(self) -> None:
        """Fail all calls that wait, and end the connections."""
        if self.lifetime.forked:
            return
        self.lifetime.end()
        await self._forget_calls()
        self._connections.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            _fail(calls, StoreError(_CLOSED))

    # Flights.

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Start a task: whoever waits for it may be cancelled, but not what is sent to the server."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it may be gone

    async def _fly(self, verb: str) -> None:
        """Send what waits as one flight, and what came meanwhile as the next."""
        calls: list[tuple[Any, Done]] = []
        try:
            while calls := self._waiting.pop(verb, []):
                if len(calls) > _PARTS:
                    calls, self._waiting[verb] = calls[:_PARTS], calls[_PARTS:]
                await self._send(verb, calls)
        except asyncio.CancelledError:
            _fail(calls, StoreError(_CLOSED))
            raise
        finally:
            self._under_way.discard(verb)

    async def _send(self, verb: str, calls: list[tuple[Any, Done]]) -> None:
        """Send a flight, and hand out its answers; if its values are the fault, find the part that is to blame."""
        try:
            known = self._verbs.get(verb) or self.verb(verb)
            if known.alone is not None and len(calls) == 1:
                known = known.alone
            given = known.arguments([part for part, _ in calls])
            flight = Flight(
                verb,
                known.text,
                lambda connection: self._arguments(known, given, connection, lost=flight.lost),
                keeps=known.keeps,
                reads=known.reads,
            )
            rows = await self._perform(flight)
            answers, notices = (_by_part(rows, len(calls)), ()) if known.reads else _decoded(verb, rows)
            if len(answers) != len(calls):
                raise StoreError(f"{verb!r} gave {len(answers)} answers to {len(calls)} parts")
        except Exception as error:  # noqa: BLE001 -- raised by every call of the flight
            if len(calls) == 1 or not depends_on_parts(error):
                _fail(calls, error)
                return
            middle = len(calls) // 2
            await self._send(verb, calls[:middle])
            await self._send(verb, calls[middle:])
            return
        if notices:
            call_back(self.notify, notices)
        for (_, done), answer in zip(calls, answers, strict=True):
            call_back(done, answer)

    def _arguments(self, verb: Verb, given: tuple[Any, ...], connection: Connection, *, lost: bool) -> Sequence[object]:
        if verb.reads:
            return given
        arguments = (self._moment(), self._lease, self.owner, *given)
        if verb.recognises:
            return (*arguments, lost)
        return (*arguments, connection.number, connection.calls) if verb.keeps else arguments

    async def _perform(self, flight: Flight) -> list[Any]:
        """Send a flight until it is known that it was done, or cannot be; return its rows."""
        while True:
            await self._opened()
            connection = await self._connection_for(flight)
            try:
                if flight.doubt is not None and (rows := await self._find(connection, flight.doubt)):
                    break
                flight.doubt = None
                connection.calls += 1
                self.flights += 1
                rows = await connection.fetch(flight.text, flight.arguments(connection))
                break
            except Exception as error:  # noqa: BLE001 -- sorted out there
                await self._repeat_or_raise(flight, connection, error)
            except BaseException:
                self._connections.drop(connection)
                raise
        self._connections.give_back(connection)
        return rows

    async def _connection_for(self, flight: Flight) -> Connection:
        try:
            return await self._connections.take()
        except StoreError as error:
            if flight.in_doubt:
                raise unknown(flight.name, error) from error
            raise

    async def _repeat_or_raise(self, flight: Flight, connection: Connection, error: Exception) -> None:
        """Return if a flight is to be sent again; raise `StoreError` if it has failed."""
        kind = Fault.LOST if connection.lost else fault(error)
        if kind in (Fault.LOST, Fault.READ_ONLY):
            self._connections.drop(connection)
            if kind is Fault.READ_ONLY:
                self._connections.drop_idle()
            else:
                flight.lost = True
                if flight.keeps and flight.doubt is None:
                    flight.doubt = (connection.number, connection.calls)
            await self._wait_for_another(flight, error)
            return
        self._connections.give_back(connection)
        flight.repetitions += 1
        if kind is Fault.AGAIN and flight.repetitions <= _REPETITIONS:
            await asyncio.sleep(random.uniform(0, min(_PAUSE * 2**flight.repetitions, _LONGEST_PAUSE)))
        elif kind is Fault.MISSING and flight.repetitions == 1:
            self._open = False  # another version of the code, or a person, has removed it: look, and install it again
        else:
            raise failed(self.address, flight.name, error) from error

    async def _wait_for_another(self, flight: Flight, error: Exception) -> None:
        """Wait a moment after a connection was lost; raise `StoreError` if that was often enough."""
        now = asyncio.get_running_loop().time()
        if not flight.patient_until:
            flight.patient_until = now + PATIENCE
            return
        if now >= flight.patient_until:
            failure = failed(self.address, flight.name, error)
            raise (unknown(flight.name, failure) if flight.in_doubt else failure) from error
        await asyncio.sleep(_LONGEST_PAUSE * random.uniform(0.2, 1))

    async def _find(self, connection: Connection, doubt: tuple[int, int]) -> list[Any]:
        """Return the row of a call whose connection was lost; none if it was not done, and now never will be."""
        text = self._library.call(self.address.schema, "calls_find", 3)
        return await connection.fetch(text, (self.owner, *doubt))

    async def _forget_calls(self) -> None:
        """Delete what was kept for this store, if that is possible at once."""
        if self._open:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_FORGET):
                    connection = await self._connections.take()
                    text = self._library.call(self.address.schema, "calls_forget", 1)
                    await connection.fetch(text, (self.owner,))

    # Opening.

    async def _opened(self) -> None:
        """Open the store, unless it is open; wait if that is under way."""
        if not self._open:
            if self._opening is None:
                self._opening = self._spawn(self._prepare(), "postgres open")
            await _wait_for(self._opening)

    async def _prepare(self) -> None:
        try:
            meta = await self._open_schema()
            self.store_id = meta.id
            self._open = self._connections.patient = True
            if self.on_open is not None:
                await self.on_open()
        finally:
            self._opening = None

    async def _open_schema(self) -> Meta:
        """Open the schema; again and again, if others use the tables that a migration changes, or connections are lost."""
        patient_until, lost = asyncio.get_running_loop().time() + _OPENING, 0
        while True:
            connection = await self._connections.take()
            try:
                meta = await open_schema(connection.raw, self.address, self._library, self._steps, self.store_id)
            except StoreError:
                self._connections.drop(connection)
                raise
            except Exception as error:
                kind = Fault.LOST if connection.lost else fault(error)
                self._connections.drop(connection)
                lost += kind is Fault.LOST
                again = kind is Fault.AGAIN or (kind is Fault.LOST and lost <= _LOST)
                if not again or asyncio.get_running_loop().time() >= patient_until:
                    raise failed(self.address, "opening", error) from error
            except BaseException:
                self._connections.drop(connection)
                raise
            else:
                self._connections.give_back(connection)
                return meta
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))

    def _leave_behind(self) -> None:
        if self.after_fork is not None:
            self.after_fork()


def call_back(done: Done, answer: Any) -> None:
    """Call back; an exception of the callback does not reach the other calls of the flight."""
    try:
        done(answer)
    except Exception as error:  # noqa: BLE001 -- reported by the loop, as an exception of any other callback
        context = {"message": "a callback of the Postgres store failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _decoded(verb: str, rows: list[Any]) -> tuple[list[Any], Sequence[str]]:
    """Return the answers and the notices of a function."""
    [row] = rows
    answers = _decode(row["answers"])
    if answers is None:  # by `calls_scrub`, after its connection was lost
        raise StoreError(
            f"{verb!r} was done, but its answer was lost with the connection, and its copy was deleted when an entity was deleted"
        )
    return answers, row["notices"]


def _by_part(rows: list[Any], count: int) -> list[Any]:
    """Return rows by the number of their part, which is their first column."""
    if count == 1:
        return [[row[1:] for row in rows]]
    answers: list[Any] = [[] for _ in range(count)]
    for row in rows:
        answers[row[0] - 1].append(row[1:])
    return answers


async def _wait_for(task: "asyncio.Task[Any]") -> Any:
    """Return the result of a task, which is not cancelled with its caller; it is when the store is closed."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise StoreError(_CLOSED) from None
        raise


def _fail(calls: list[tuple[Any, Done]], error: Exception) -> None:
    for _, done in calls:
        call_back(done, error)
