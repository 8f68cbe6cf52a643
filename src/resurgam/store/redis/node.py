"""One server: calls that wait while a flight is under way go together in the next one.

A *flight* is a pipeline: one function call for each partition and verb, with all parts that wait for it, and `WAIT` if the
URL asks for acknowledgements. The node is sent one flight at a time, so a flight is a round trip.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha1
from typing import Any, Final, Protocol

import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.redis.connection import Connection, ConnectionLost, ReplyError, connect, pack, runs_function
from resurgam.store.redis.library import Library
from resurgam.store.redis.url import Address, Endpoint, text_of

Done = Callable[[Any], None]
"""Called with the answer to a part, or with the exception that came instead."""

_ANSWER: Final = 10.0
"""Seconds without any answer to a flight after which the connection is given up, unless the server still runs a function."""

_ACKNOWLEDGE: Final = 1000
"""Milliseconds in which replicas must acknowledge a flight."""

PATIENCE: Final = 5.0
"""Seconds for which calls wait for a server that cannot be used just now."""

_LEASING: Final = frozenset({"claim", "claim_activities", "claim_queries", "create", "deliver"})
"""Verbs whose answers name leases of which the caller did not know. Those of a commit are known before."""

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between two attempts to connect; each in vain doubles the pause."""


class Group:
    """The parts of one function call, with their callbacks."""

    __slots__ = ("calls", "number", "partition", "patient_until", "verb")

    def __init__(self, partition: int, verb: str, part: object, done: Done) -> None:
        self.partition = partition
        self.verb = verb
        self.calls = [(part, done)]
        self.patient_until: float | None = None
        """Until when the call is repeated; None as long as no server has refused it."""

        self.number: int | None = None
        """What the call is known by in the leases that it takes; None if it takes none."""

    def fail(self, error: Exception) -> None:
        """Call back with an error instead of the answers."""
        for _, done in self.calls:
            call_back(done, error)


class Routes(Protocol):
    """What a node needs from the link."""

    def notify(self, partition: int, notices: Sequence[bytes]) -> None:
        """Take the notices of a function call."""
        ...

    def refused(self, node: "Node", group: Group, error: ReplyError) -> None:
        """Send a function call that was not executed again, or fail it."""
        ...

    def lost(self, group: Group, error: StoreError) -> None:
        """Fail a call whose answer is lost, or send it again if it only reads."""
        ...

    def give_up(self, group: Group, error: StoreError) -> None:
        """Fail a call that may have been executed."""
        ...

    def unreachable(self, node: "Node") -> None:
        """Find out whether another server has taken over."""
        ...


class Node:
    """The connection for calls to one server, and the calls that wait for it."""

    def __init__(self, address: Address, endpoint: Endpoint, frame: "Frame", routes: Routes) -> None:
        self.endpoint = endpoint
        self.flights = 0
        """The number of round trips with calls."""

        self._address = address
        self._frame = frame
        self._routes = routes
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[tuple[int, str], Group] = {}
        self._repeated: list[Group] = []
        self._under_way = 0
        """Calls of the flight that have no answer yet."""

        self._departing = False
        self._progress: tuple[int, int] | None = None
        """The flight under way and its missing replies when they were last looked at; None if there was no flight."""

        self._watch: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, partition: int, verb: str, part: object, done: Done, *, at_once: bool = False) -> None:
        """Add a part to the next flight. It leaves when the callbacks of this turn of the loop are done, or *at_once*."""
        is_free = self._under_way == 0 and not self._departing
        if at_once and is_free and not self._waiting and not self._closed:
            connection = self._connection
            if connection is not None and connection.lost is None:
                self._fly(connection, [Group(partition, verb, part, done)])
                return
        key = (partition, verb)
        group = self._waiting.get(key)
        if group is None:
            self._waiting[key] = Group(partition, verb, part, done)
        else:
            group.calls.append((part, done))
        if is_free:
            self._departing = True
            self._loop.call_soon(self._depart)

    def repeat(self, group: Group) -> None:
        """Add a call that was not executed to the next flight, as a call of its own."""
        self._repeated.append(group)
        if not self._departing and self._under_way == 0:
            self._departing = True
            self._loop.call_soon(self._depart)

    def take_waiting(self) -> list[Group]:
        """Return the calls that wait, which are no longer this node's."""
        waiting = [*self._repeated, *self._waiting.values()]
        self._waiting, self._repeated = {}, []
        return waiting

    @property
    def is_busy(self) -> bool:
        """Whether calls wait, or are under way."""
        return self._needed or self._departing or self._under_way > 0

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, and there is no other yet."""
        return self._connection is not None and self._connection.lost is not None

    @property
    def _needed(self) -> bool:
        """Whether calls wait."""
        return bool(self._waiting or self._repeated)

    async def connected(self) -> Connection:
        """Return the connection; raise `StoreError` if none can be made."""
        async with self._one_at_a_time:
            if self._connection is None or self._connection.lost is not None:
                connection = await connect(self._address, self.endpoint)
                if self._closed:
                    connection.close()
                    raise ConnectionLost("the store is closed")
                self._connection = connection
                connection.on_lost = self._lost
                self._watch_answers()
            return self._connection

    async def load(self) -> None:
        """Load the library, or the script, unless the server has it."""
        connection = await self.connected()
        try:
            await connection.ask(*self._frame.load)
        except ReplyError as error:
            if "already exists" not in str(error):
                raise

    def disconnect(self, reason: str) -> None:
        """Give up the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.close(reason)

    def close(self, error: StoreError) -> None:
        """End the connection and fail all calls."""
        self._closed = True
        for task in (self._connecting, self._probing, self._watch):
            if task is not None:
                task.cancel()
        self.disconnect(str(error))
        for group in self.take_waiting():
            group.fail(error)

    # Flights.

    def _depart(self) -> None:
        """Send what waits as one flight."""
        self._departing = False
        if not self._needed or self._under_way > 0 or self._closed:
            return
        connection = self._connection
        if connection is None or connection.lost is not None:
            self._connect()
            return
        self._fly(connection, self.take_waiting())

    def _fly(self, connection: Connection, waiting: Sequence[Group]) -> None:
        """Send calls as one flight."""
        groups, commands = self._pack(waiting)
        if not groups:
            return
        self._under_way = len(groups)
        self.flights += 1
        if self._address.wait:
            answers: list[Any] = []
            commands.append(pack("WAIT", self._address.wait, _ACKNOWLEDGE))
            replies: list[Done] = [answers.append] * len(groups)
            replies.append(partial(self._acknowledged, groups, answers))
        else:
            replies = [partial(self._answered, group) for group in groups]
        connection.send(b"".join(commands), replies)

    def _pack(self, waiting: Sequence[Group]) -> tuple[list[Group], list[bytes]]:
        """Return calls with their commands; fail those that have none, because a part cannot be encoded."""
        groups, commands = [], []
        for group in waiting:
            try:
                commands.append(self._frame.pack(group))
            except Exception as error:  # noqa: BLE001 -- handed on to who made the call
                group.fail(error)
            else:
                groups.append(group)
        return groups, commands

    def _acknowledged(self, groups: Sequence[Group], answers: Sequence[Any], reply: Any) -> None:
        """Take the reply to `WAIT`, the last of a flight: only now the answers count."""
        unacknowledged = self._unacknowledged(reply)
        for group, answer in zip(groups, answers, strict=True):
            self._answered(group, answer, unacknowledged)

    def _answered(self, group: Group, answer: Any, unacknowledged: StoreError | None = None) -> None:
        """Hand out the answers to a call, while the server executes the next one; send what waits after the last."""
        self._under_way -= 1
        if answer == 1:  # no notices, and this is the answer to each part
            self._hand_out(group, [1] * len(group.calls), unacknowledged)
        elif type(answer) is list:
            notices, answers = answer
            if notices:
                call_back(partial(self._routes.notify, group.partition), notices)
            self._hand_out(group, answers, unacknowledged)
        elif isinstance(answer, ReplyError):
            call_back(partial(self._routes.refused, self, group), answer)
        else:
            self._routes.lost(group, self._unknown(group, answer))
        if self._under_way == 0 and (self._waiting or self._repeated) and not self._departing:
            self._departing = True
            self._loop.call_soon(self._depart)

    def _hand_out(self, group: Group, answers: list[Any], unacknowledged: StoreError | None) -> None:
        if unacknowledged is not None:
            self._routes.give_up(group, unacknowledged)
            return
        if len(answers) != len(group.calls):
            group.fail(StoreError(f"{group.verb!r} gave {len(answers)} answers to {len(group.calls)} parts"))
            return
        for (_, done), one in zip(group.calls, answers, strict=True):
            call_back(done, one)

    def _unknown(self, group: Group, error: object) -> StoreError:
        return StoreError(f"{self._address}: {error}; it is unknown whether {group.verb!r} was done")

    def _unacknowledged(self, reply: Any) -> StoreError | None:
        """Return the error of a flight that too few replicas have acknowledged."""
        wanted = self._address.wait
        if isinstance(reply, int) and reply >= wanted:
            return None
        if isinstance(reply, ConnectionLost):
            return StoreError(f"{self._address}: {reply}; it is unknown whether replicas have the last writes")
        got = reply if isinstance(reply, int) else f"{reply}: none"
        return StoreError(
            f"{self._address}: {got} of {wanted} replicas acknowledged a write within {_ACKNOWLEDGE} ms (?wait={wanted}); "
            "it was done, and is lost if the primary fails before they have it"
        )

    # The connection.

    def _connect(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._keep_connecting(), name="redis connect")

    async def _keep_connecting(self) -> None:
        """Connect again while calls wait; after a while fail those that wait after each attempt."""
        pause, patient_until = _FIRST_PAUSE, self._loop.time() + PATIENCE
        try:
            while self._needed:
                try:
                    await self.connected()
                except StoreError as error:
                    if self._loop.time() >= patient_until:
                        for group in self.take_waiting():
                            group.fail(error)
                        return
                    self._routes.unreachable(self)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    return
        finally:
            self._connecting = None
            if self._connection is not None and self._connection.lost is None:
                self._depart()

    def _lost(self) -> None:
        """Start again if calls wait; those in flight have failed already."""
        self._routes.unreachable(self)
        if self._needed:
            self._connect()

    def _watch_answers(self) -> None:
        """Ask the server what it does if a flight gets no answer for too long."""
        if self._watch is not None:
            self._watch.cancel()
        connection = self._connection
        if connection is None or connection.lost is not None:
            return
        progress = self._progress_of(connection)
        if progress is not None and progress == self._progress and self._probing is None:
            self._probing = self._loop.create_task(self._probe(connection), name="redis probe")
        self._progress = progress
        self._watch = self._loop.call_later(_ANSWER / 2, self._watch_answers)

    def _progress_of(self, connection: Connection) -> tuple[int, int] | None:
        return (self.flights, connection.missing) if self._under_way > 0 else None

    async def _probe(self, connection: Connection) -> None:
        """Give the connection up, unless the server still runs a function, which may be that of the flight."""
        before = self._progress_of(connection)
        try:
            runs = await runs_function(self._address, self.endpoint, _ANSWER)
        finally:
            self._probing = None
        if not runs and before is not None and self._progress_of(connection) == before:
            connection.close(f"no answer from {text_of(self.endpoint)} within {_ANSWER:g} s")


class Frame:
    """What every function call of a store has in common. With *reads_only* a script makes them, which cannot write.

    *moment* tells the time; None for the server's own.
    """

    def __init__(
        self,
        library: Library,
        keys: Sequence[bytes],
        lease: int,
        owner: str,
        moment: Callable[[], str] | None,
        *,
        reads_only: bool = False,
    ) -> None:
        self.load = ("SCRIPT", "LOAD", library.script) if reads_only else ("FUNCTION", "LOAD", library.text)
        """The command that makes the functions known to a server."""

        self._script = sha1(library.script.encode(), usedforsecurity=False).hexdigest() if reads_only else None
        self._functions = library.functions
        self._keys = keys
        self._constant = _bulk(str(lease).encode()) + _bulk(owner.encode())
        if moment is None:
            self._constant = _bulk(b"") + self._constant
        self._moment = moment
        self._encode = msgspec.msgpack.Encoder().encode
        self._heads: dict[tuple[str, int], bytes] = {}
        self._numbers = itertools.count(1)

    def pack(self, group: Group) -> bytes:
        """Return a function call with its parts as it is sent: put together by hand, as most of it is always the same."""
        calls, verb = group.calls, group.verb
        parts = self._encode([calls[0][0]] if len(calls) == 1 else [part for part, _ in calls])
        head = self._heads.get((verb, group.partition)) or self._head(verb, group.partition)
        if self._moment is not None:
            head += _bulk(self._moment().encode())
        packed = b"%b%b$%d\r\n%b\r\n" % (head, self._constant, len(parts), parts)
        if self._script is not None:
            return packed + _bulk(self._functions[verb])
        if verb in _LEASING:
            group.number = next(self._numbers)
            return packed + _bulk(b"%d" % group.number)
        return packed

    def _head(self, verb: str, partition: int) -> bytes:
        """Return the command of a function with its key."""
        function, key = self._functions[verb], self._keys[partition]
        if self._script is None:
            command = [b"FCALL", function, b"1", key]
        else:
            command = [b"EVALSHA_RO", self._script.encode(), b"1", key]
        arguments = 4 if self._script is None and verb not in _LEASING else 5
        head = b"*%d\r\n%b" % (len(command) + arguments, b"".join(map(_bulk, command)))
        self._heads[verb, partition] = head
        return head


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def call_back(done: Done, answer: Any) -> None:
    """Call back; an exception of the callback does not reach the other calls of the flight."""
    try:
        done(answer)
    except Exception as error:  # noqa: BLE001 -- reported by the loop, as an exception of any other callback
        context = {"message": "a callback of the Redis store failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
