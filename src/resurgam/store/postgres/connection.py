"""One connection: its settings, its transactions, and the time that it waits for an answer."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from resurgam.core.errors import StoreError
from resurgam.store.postgres.errors import unreachable
from resurgam.store.postgres.url import Address

_SETTINGS: Final = {
    "search_path": "pg_catalog",
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Settings of every session, or with a pooler of every transaction.

Every statement finds its rows by an index, whatever the values: to plan it for each call would take longer than to run it. It
is planned once, perhaps while the tables are empty, and must not read them whole when they have grown. No function of another
schema, such as a ``greatest`` of somebody's own, is taken for the one of the server."""

_READ_COMMITTED: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Each statement of a function sees what was committed before it, whatever the default of the server is."""

_BEGIN: Final = "; ".join((_READ_COMMITTED, *(f"SET LOCAL {name} = '{value}'" for name, value in _SETTINGS.items())))

_ANSWER: Final = 40.0
"""Seconds without an answer after which the connection is given up; the server gives up a statement before."""

_NAME: Final = 63
"""Bytes of an ``application_name``."""

_WARNING: Final = "01000"
"""The code of the warning that a commit does not wait for the synchronous standby any longer."""


class Connection:
    """A connection with one call at a time. With a pooler each call is a transaction of its own, without named statements."""

    def __init__(self, raw: Any, address: Address, number: int) -> None:
        self.number = number
        """Which of the connections of this store it is."""

        self.calls = 0
        """How many calls it has made."""

        self.raw = raw
        """The connection of the client library."""

        self._address = address
        self._warned = False
        raw.add_log_listener(self._on_notice)

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        return bool(self.raw.is_closed())

    async def fetch(self, text: str, arguments: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a statement, as a transaction."""
        self._warned = False
        watch = asyncio.get_running_loop().call_later(_ANSWER, self.raw.terminate)
        try:
            rows: list[Any]
            if self._address.pooler:
                rows = await self._fetch_in_transaction(text, arguments)
            else:
                rows = await self.raw.fetch(text, *arguments)
        finally:
            watch.cancel()
        if self._warned:
            raise StoreError(
                f"{self._address}: the server was told not to wait for its synchronous standby; "
                "what was written is lost if it fails before the standby has it"
            )
        return rows

    async def _fetch_in_transaction(self, text: str, arguments: Sequence[object]) -> list[Any]:
        await self.raw.execute(_BEGIN)
        try:
            rows: list[Any] = await self.raw.fetch(text, *arguments)
        except asyncpg.PostgresError:
            if not self.lost:
                await self.raw.execute("ROLLBACK")
            raise
        await self.raw.execute("COMMIT")
        return rows

    def terminate(self) -> None:
        """End the connection at once."""
        if not self.lost:
            self.raw.terminate()

    def _on_notice(self, _: object, message: Any) -> None:
        if message.sqlstate == _WARNING:
            self._warned = True


async def connect(address: Address, *, name: str) -> Any:
    """Return a new connection of the client library, which the server knows by *name*.

    Raise `StoreError` if none can be made.
    """
    given = dict(address.options).get("application_name", "resurgam")
    settings = {} if address.pooler else {**_SETTINGS, "application_name": f"{given} {name}"[:_NAME]}
    try:
        return await asyncpg.connect(
            **address.arguments,
            statement_cache_size=0 if address.pooler else 1000,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings=settings,
        )
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unreachable(address, error) from error
