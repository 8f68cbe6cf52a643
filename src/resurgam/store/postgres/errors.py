"""Tell the errors of the client library apart, and turn each into one clear `StoreError`, never with a password in it."""

import socket
import ssl
from enum import Enum, auto
from typing import Final

import asyncpg

from resurgam.core.errors import StoreError, WriteRejected
from resurgam.store.postgres.url import Address

_POOLER: Final = "if the server is behind PgBouncer, add pooler=transaction to the URL"

_REMEDIES: Final = {
    "08P01": _POOLER,
    "22P05": "Postgres stores no text with the character NUL; leave it out of ids, names and tags",
    "26000": _POOLER,
    "28P01": "the user or the password of the URL is wrong",
    "28000": "the server does not let this user in; see its pg_hba.conf",
    "3D000": "create the database, or name another one in the URL",
    "42501": "the user of the URL needs CREATE on the database, or must be the owner of the schema and of its tables",
    "25006": "the server takes no writes; name the primary in the URL",
    "42P05": _POOLER,
    "53100": "the disk of the server is full",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left; raise its max_connections, lower pool= in the URL, or use a pooler",
    "54000": "keep large values elsewhere, and pass their ids",
    "57014": "the server gives up a statement after 30 seconds",
    "57P03": "the server is starting up or shutting down",
}
"""What to do about an error of the server, by its code."""

_ENDED: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
"""The server ends the connection."""

_AGAIN: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock timeout."""

_MISSING: Final = frozenset({"3F000", "42883", "42P01"})
"""There is no such schema, function or table."""

_LATER: Final = frozenset({"53300", "57P03"})
"""No connection is left, or the server is starting up."""

_TOO_MUCH: Final = frozenset({"53200", "57014"})
"""Out of memory, or out of time."""

_REJECTED: Final = ("22", "23", "54")
"""Classes of errors about the values that were sent."""


class Fault(Enum):
    """What an error of a call means for it."""

    LOST = auto()
    """The connection has ended: it is unknown whether the call was done."""

    AGAIN = auto()
    """Nothing was done, because of other transactions: it may work the next time."""

    READ_ONLY = auto()
    """Nothing was done: the server takes no writes (any longer)."""

    MISSING = auto()
    """Nothing was done: the function, a table or the schema is not there."""

    FINAL = auto()
    """Nothing was done, and the next time would be no different."""


class Unreachable(StoreError):
    """No connection could be made; *passing* if that may be different soon."""

    def __init__(self, message: str, *, passing: bool, starting: bool, full: bool) -> None:
        super().__init__(message)
        self.passing = passing
        self.starting = starting
        """Whether the server is starting up."""

        self.full = full
        """Whether the server has no connection left for this store."""


def fault(error: Exception) -> Fault:
    """Return what an error of a call means for it."""
    code = sqlstate(error)
    if code in _ENDED or code.startswith("08"):
        return Fault.LOST
    if code in _AGAIN:
        return Fault.AGAIN
    if code == "25006":
        return Fault.READ_ONLY
    if code in _MISSING or (code == "XX000" and "cache lookup failed" in str(error)):
        return Fault.MISSING
    if code or isinstance(error, asyncpg.DataError | StoreError):
        return Fault.FINAL
    lost = isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | OSError)
    return Fault.LOST if lost else Fault.FINAL


def sqlstate(error: BaseException) -> str:
    """Return the code of an error of the server; empty if it has none."""
    return str(getattr(error, "sqlstate", None) or "")


def unreachable(address: Address, error: Exception) -> Unreachable:
    """Return the error for a connection that could not be made."""
    code = sqlstate(error)
    network = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    passing = network or code in _LATER or code.startswith("08")
    passing = passing or isinstance(error, asyncpg.TargetServerAttributeNotMatched)
    return Unreachable(f"{address}: {_reason(error)}", passing=passing, starting=code == "57P03", full=code == "53300")


def failed(address: Address, what: str, error: Exception) -> StoreError:
    """Return the error for a call that was not done."""
    rejected = sqlstate(error)[:2] in _REJECTED or isinstance(error, asyncpg.DataError)
    return (WriteRejected if rejected else StoreError)(f"{address}: {what!r} failed: {_reason(error)}")


def depends_on_parts(error: Exception) -> bool:
    """Whether a call that was not done may be done with fewer of its parts: one cannot be written, or they are too many."""
    rejected = isinstance(error, WriteRejected | ValueError | TypeError)
    return rejected or (error.__cause__ is not None and sqlstate(error.__cause__) in _TOO_MUCH)


def unknown(what: str, error: StoreError) -> StoreError:
    """Return the error for a call of which it is unknown whether it was done."""
    return StoreError(f"{error}; it is unknown whether {what!r} was done")


def _reason(error: BaseException) -> str:
    code = sqlstate(error)
    if code:
        remedy = _REMEDIES.get(code, "")
        said = str(error).partition("\nHINT:")[0] if remedy else str(error)  # one remedy is enough
        return f"{' '.join(said.split())} ({code}){remedy and '; '}{remedy}"
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, socket.gaierror):
        return f"the host is not known: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "no server listens there"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {error}"
    return str(error) or type(error).__name__
