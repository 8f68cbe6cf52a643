"""Connections and flights: calls of one verb that wait while a flight of it is under way go together in the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec

from resurgam.core.clock import Clock, is_system
from resurgam.core.errors import StoreError
from resurgam.store.lifetime import Lifetime
from resurgam.store.postgres.connection import connect
from resurgam.store.postgres.errors import LOST, failed, unknown
from resurgam.store.postgres.functions import Library, library
from resurgam.store.postgres.migrate import migrations
from resurgam.store.postgres.opening import open_schema
from resurgam.store.postgres.statements import statement
from resurgam.store.postgres.url import Address

Done = Callable[[Any], None]
"""Called with the answer to a part, or with the exception that came instead."""

Arguments = Callable[[list[Any]], tuple[Any, ...]]
"""Returns the arguments of a function for the parts of a flight, after moment, lease and owner."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode


def _as_json(parts: list[Any]) -> tuple[Any, ...]:
    return (_encode(parts).decode(),)


class Pool:
    """The connections of one open store. Nothing is sent before the first call."""

    def __init__(self, address: Address, clock: Clock, *, name: str, lease: int, code: Library | None = None) -> None:
        self.address = address
        self.owner = f"{name}-{token_hex(4)}"
        self.store_id = ""
        self.notify: Callable[[Sequence[str]], None] = lambda _: None
        self.on_open: Callable[[], Awaitable[None]] | None = None
        self.after_fork: Callable[[], None] | None = None
        self.lifetime = Lifetime(after_fork=self._leave_behind)
        self.flights = 0
        self._lease = lease
        self._moment: Callable[[], int | None] = (lambda: None) if is_system(clock) else clock.now
        self._library = code or library()
        self._joins: dict[str, Arguments] = {}
        self._waiting: dict[str, list[tuple[Any, Done]]] = {}
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: list[Any] = []
        self._made = 0
        self._free = asyncio.Semaphore(address.pool)
        self._opening: asyncio.Task[None] | None = None
        self._open = False

    def verb(self, verb: str, arguments: Arguments) -> None:
        """Say how the parts of a verb become the arguments of its function, if not as one JSON array."""
        self._joins[verb] = arguments

    def call(self, verb: str, part: object, done: Done) -> None:
        """Add a part to the next flight of a verb; *done* gets its answer, or an exception, outside of any task."""
        if self.lifetime.refusal is not None:
            done(StoreError(self.lifetime.refusal))
            return
        self._waiting.setdefault(verb, []).append((part, done))
        if verb not in self._under_way:
            self._under_way.add(verb)
            self._spawn(self._fly(verb))

    async def ask(self, verb: str, part: object) -> Any:
        """Return the answer to a part."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call(verb, part, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(self, function: str, *arguments: object) -> list[Any]:
        """Return the rows of a function that only reads."""
        self.lifetime.check()
        text = self._library.call(self.address.schema, function, len(arguments))
        task = self._spawn(self._run(function, text, arguments))
        rows: list[Any] = await asyncio.shield(task)
        return rows

    async def select(self, name: str, *arguments: object, **parts: str) -> list[Any]:
        """Return the rows of a statement of `reads.sql`; *parts* are put where their names stand in braces."""
        self.lifetime.check()
        task = self._spawn(self._run(name, statement(name, self.address.schema, **parts), arguments))
        rows: list[Any] = await asyncio.shield(task)
        return rows

    async def connect(self) -> Any:
        """Return a new connection that is the caller's own, once the store is open."""
        await self._opened()
        self._made += 1
        return await connect(self.address, name=f"{self.owner}/{self._made}")

    async def close(self) -> None:
        """Fail all calls that wait, and end the connections."""
        if self.lifetime.forked:
            return
        self.lifetime.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        error = StoreError("the store was closed while this waited")
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            _fail(calls, error)
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()

    def _spawn(self, coroutine: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fly(self, verb: str) -> None:
        try:
            await asyncio.sleep(0)
            while calls := self._waiting.pop(verb, None):
                try:
                    await self._send(verb, calls)
                except asyncio.CancelledError:
                    _fail(calls, StoreError("the store was closed while this waited"))
                    raise
                except Exception as error:  # noqa: BLE001 -- raised by every call
                    _fail(calls, error)
        finally:
            self._under_way.discard(verb)

    async def _send(self, verb: str, calls: list[tuple[Any, Done]]) -> None:
        join = self._joins.get(verb, _as_json)
        arguments = (self._moment(), self._lease, self.owner, *join([part for part, _ in calls]))
        text = self._library.call(self.address.schema, verb, len(arguments))
        [row] = await self._run(verb, text, arguments)
        answers = _decode(row["answers"])
        if row["notices"]:
            call_back(self.notify, row["notices"])
        if len(answers) != len(calls):
            raise StoreError(f"{verb!r} gave {len(answers)} answers to {len(calls)} parts")
        for (_, done), answer in zip(calls, answers, strict=True):
            call_back(done, answer)

    async def _run(self, what: str, text: str, arguments: Sequence[object]) -> list[Any]:
        await self._opened()
        async with self._free:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                self.flights += 1
                rows: list[Any] = await connection.fetch(text, *arguments)
            except LOST as error:
                connection.terminate()
                raise unknown(self.address, what, error) from error
            except asyncio.CancelledError:
                connection.terminate()
                raise
            except Exception as error:
                self._idle.append(connection)
                raise failed(self.address, what, error) from error
            self._idle.append(connection)
            return rows

    async def _connect(self) -> Any:
        self._made += 1
        return await connect(self.address, name=f"{self.owner}/{self._made}")

    async def _opened(self) -> None:
        if not self._open:
            if self._opening is None:
                self._opening = self._spawn(self._prepare())
            await asyncio.shield(self._opening)

    async def _prepare(self) -> None:
        try:
            connection = await self._connect()
            try:
                meta = await open_schema(connection, self.address, self._library, migrations())
            except BaseException as error:
                connection.terminate()
                if isinstance(error, StoreError | asyncio.CancelledError):
                    raise
                raise failed(self.address, "opening", error) from error
            self._idle.append(connection)
            self.store_id = meta.id
            self._open = True
            if self.on_open is not None:
                await self.on_open()
        finally:
            self._opening = None

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


def _fail(calls: list[tuple[Any, Done]], error: Exception) -> None:
    for _, done in calls:
        call_back(done, error)
