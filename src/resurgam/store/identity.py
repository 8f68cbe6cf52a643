"""The identity of a store, which no other store has; only a copy of its data has the same."""

from secrets import token_hex
from typing import Final

from resurgam.store.protocol import Values

_KEY: Final = "store-id"


async def identity_of(values: Values) -> str:
    """Return the identity of a store; the first caller of all makes it."""
    return (await values.put_if_absent(_KEY, token_hex(8).encode())).decode()
