"""The secret of a store, from which ids are made that cannot be guessed."""

from secrets import token_bytes
from typing import Final

from resurgam.store.protocol import Values

_KEY: Final = "secret"
_LENGTH: Final = 32
"""Bytes."""


async def secret_of(values: Values) -> bytes:
    """Return the secret of a store; the first caller of all processes makes it."""
    return await values.put_if_absent(_KEY, token_bytes(_LENGTH))


async def share_secret(source: Values, target: Values) -> bool:
    """Give a store the secret of another, unless it has one; return whether both have the same."""
    secret = await secret_of(source)
    return await target.put_if_absent(_KEY, secret) == secret
