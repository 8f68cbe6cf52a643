"""Ids that are the same on replay: derived from the location of a call instead of random numbers."""

import base64
import hmac
from hashlib import blake2b

from resurgam.core.identity import route_of

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def derived_id(at: int, *parts: object) -> str:
    """Derive an id in the form of a ULID from these parts."""
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=10).digest()
    number = (at << 80) | int.from_bytes(digest, "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def promise_id(secret: bytes, entity_id: str, run_id: str, location: object) -> str:
    """Return the id of a promise: the route of its entity, and a part that is unguessable without the store's secret."""
    digest = hmac.digest(secret, f"{run_id}\0{location}".encode(), "sha256")
    return route_of(entity_id) + base64.b32encode(digest[:20]).decode().lower()
