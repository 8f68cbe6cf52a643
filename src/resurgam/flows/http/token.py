"""The secret in the address to which an async step sends its answer. It is made from the store's own, never recorded."""

import re
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

_FORM: Final = re.compile(r"(\d{1,18})-[0-9a-f]{32}", re.ASCII)


def number_in(receipt: str) -> tuple[str, int]:
    """Return the run and the number of the work item that a receipt names."""
    run_id, _, number = receipt.rpartition("/")
    return run_id, int(number)


def webhook_token(secret: bytes, receipt: str) -> str:
    """Return the token of a work item: its number, and a hash of its id that only a holder of *secret* can make."""
    _, number = number_in(receipt)
    digest = blake2b(receipt.encode(), key=secret, digest_size=16, person=b"webhook").hexdigest()
    return f"{number}-{digest}"


def number_of(token: str) -> int | None:
    """Return the number of the work item that a token is for; None if it is no token. It proves nothing by itself."""
    found = _FORM.fullmatch(token)
    return None if found is None else int(found[1])


def is_token(secret: bytes, receipt: str, token: str) -> bool:
    """Whether a token is that of a work item; takes the same time for every wrong one."""
    return compare_digest(webhook_token(secret, receipt).encode(), token.encode("utf-8", "replace"))
