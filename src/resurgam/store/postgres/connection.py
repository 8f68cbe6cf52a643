"""Make connections, with the settings that all of them share."""

from typing import Any, Final

import asyncpg

from resurgam.store.postgres.errors import unreachable
from resurgam.store.postgres.url import Address

SETTINGS: Final = {
    "statement_timeout": "30000",
    "lock_timeout": "5000",
    "idle_in_transaction_session_timeout": "30000",
    "jit": "off",
}
"""Settings of every session, or with a pooler of every transaction."""


async def connect(address: Address, *, name: str) -> Any:
    """Return a new connection that the server knows by *name*; raise `StoreError` if none can be made."""
    given = dict(address.options).get("application_name")
    settings = {} if address.pooler else {**SETTINGS, "application_name": f"{given or 'resurgam'} {name}"[:63]}
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
