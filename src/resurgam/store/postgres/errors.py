"""Turn the errors of the client library into one clear `StoreError` each, never with a password in it."""

import ssl
from typing import Final

import asyncpg

from resurgam.core.errors import StoreError
from resurgam.store.postgres.url import Address

LOST: Final = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError, OSError)
"""What is raised if a connection ends, or the server ends it: what was under way may have been done."""

_REMEDIES: Final = {
    "28P01": "the user or the password of the URL is wrong",
    "28000": "the server does not let this user in; see its pg_hba.conf",
    "3D000": "create the database, or name another one in the URL",
    "42501": "the user of the URL needs CREATE on the database, or must own the schema",
    "25006": "the server takes no writes; name the primary in the URL",
    "53100": "the disk of the server is full",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left; raise its max_connections, lower pool= in the URL, or use a pooler",
    "54000": "a value is too large for the server",
    "57P03": "the server is starting up or shutting down",
}
"""What to do about an error of the server, by its code."""


class NotDone(StoreError):
    """A call was not executed, and may be sent again."""


def sqlstate(error: BaseException) -> str:
    """Return the code of an error of the server; empty if it has none."""
    return str(getattr(error, "sqlstate", None) or "")


def unreachable(address: Address, error: BaseException) -> StoreError:
    """Return the error for a connection that could not be made."""
    return StoreError(f"{address}: {_reason(error)}")


def failed(address: Address, what: str, error: BaseException) -> StoreError:
    """Return the error for a call that failed."""
    return StoreError(f"{address}: {what!r} failed: {_reason(error)}")


def unknown(address: Address, what: str, error: BaseException) -> StoreError:
    """Return the error for a call of which it is unknown whether it was done."""
    return StoreError(f"{address}: {_reason(error)}; it is unknown whether {what!r} was done")


def _reason(error: BaseException) -> str:
    code = sqlstate(error)
    if code:
        remedy = _REMEDIES.get(code, "")
        return f"{error} ({code}){remedy and '; '}{remedy}"
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {error}"
    return str(error) or type(error).__name__
