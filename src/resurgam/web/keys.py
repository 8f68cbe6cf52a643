"""API keys, kept in the store as hashes."""

import re
import time
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from hmac import compare_digest
from secrets import token_hex
from typing import Final

import msgspec

from resurgam.core.errors import NotFound
from resurgam.engine import Engine
from resurgam.store.protocol import Store, Values
from resurgam.web.access import Role

KEPT_SECONDS: Final = 2.0
"""How long a server may know a key without asking the store: a revoked key stops working within this time."""

_KEPT: Final = 1000
"""How many keys a server knows at once."""

_KEY: Final = re.compile(r"rsg_([1-9][0-9]{0,8})_([0-9a-f]{64})")
_NO_HASH: Final = "0" * 64


class KeyRecord(msgspec.Struct, frozen=True):
    """What the store has of a key. Times are milliseconds since 1970."""

    name: str
    role: Role
    hash: str
    created_at: int
    revoked_at: int | None = None


_decoder: Final = msgspec.json.Decoder(KeyRecord)


class Keys:
    """The keys of a store, by number. The secret of a key is returned by `create`, and by nothing else."""

    def __init__(self, values: Values, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._values = values
        self._monotonic = monotonic
        self._kept: dict[int, tuple[float, KeyRecord | None]] = {}

    async def create(self, name: str, role: Role, at: int) -> tuple[int, str]:
        """Make a key; return its number and its text."""
        secret = token_hex(32)
        record = msgspec.json.encode(KeyRecord(name, role, _hash(secret), at))
        number = 1
        while await self._values.put_if_absent(_place(number), record) != record:
            number += 1
        return number, f"rsg_{number}_{secret}"

    async def list(self) -> AsyncIterator[tuple[int, KeyRecord]]:
        """Return all keys with their numbers, revoked ones too."""
        number = 1
        while (found := await self._read(number)) is not None:
            yield number, found
            number += 1

    async def any_valid(self) -> bool:
        """Whether there is a key that is not revoked."""
        async for _, record in self.list():
            if record.revoked_at is None:
                return True
        return False

    async def revoke(self, number: int, at: int) -> KeyRecord:
        """Make a key invalid; one that is revoked already stays as it is. Raise `NotFound` for an unknown number."""
        record = await self._read(number)
        if record is None:
            raise NotFound(f"there is no key {number}; `resurgam keys list` lists the keys")
        if record.revoked_at is None:
            record = msgspec.structs.replace(record, revoked_at=at)
            await self._values.put(_place(number), msgspec.json.encode(record))
        return record

    async def role_of(self, key: str) -> Role | None:
        """Return the role of a key; None for one that is unknown or revoked."""
        parts = _KEY.fullmatch(key)
        if parts is None:
            return None
        record = await self._known(int(parts[1]))
        # Compared in any case, and in constant time: how long it takes must not tell how much of a key is right.
        is_same = compare_digest(_hash(parts[2]), _NO_HASH if record is None else record.hash)
        return record.role if is_same and record is not None and record.revoked_at is None else None

    async def _known(self, number: int) -> KeyRecord | None:
        """Return a key as it was at most `KEPT_SECONDS` ago."""
        now = self._monotonic()
        until, record = self._kept.get(number, (now, None))
        if until <= now:
            record = await self._read(number)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[number] = now + KEPT_SECONDS, record
        return record

    async def _read(self, number: int) -> KeyRecord | None:
        found = await self._values.get(_place(number))
        return None if found is None else _decoder.decode(found)


def _place(number: int) -> str:
    return f"api-key/{number}"


def _hash(secret: str) -> str:
    """Return the hash of a secret. It is random and long, so a fast hash without a salt is enough."""
    return blake2b(secret.encode(), digest_size=32).hexdigest()


class KeysOf:
    """The keys of the store that an engine has open, whenever it was opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store: Store | None = None
        self._keys: Keys

    async def role_of(self, key: str) -> Role | None:
        """Return the role of a key; None for one that is unknown or revoked."""
        store = self._engine.store
        if store is not self._store:
            self._store, self._keys = store, Keys(store.values)
        return await self._keys.role_of(key)
