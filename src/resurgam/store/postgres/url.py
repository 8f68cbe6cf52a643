"""The URLs of Postgres stores: ``postgresql://[user[:password]@][host[:port],...][/database][?options]``.

Options of the store: ``schema`` (``resurgam``), ``pool`` (connections for calls, 5) and ``pooler=transaction`` (a pooler such
as PgBouncer hands out a server connection for each transaction). All others are those of libpq, such as ``sslmode``,
``host``, ``connect_timeout`` or ``application_name``. What the URL leaves out comes from the environment, such as ``PGHOST``
and ``PGPASSWORD``, or from the password file.
"""

from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from resurgam.core.errors import StoreError

SCHEMA: Final = "resurgam"
"""The schema of a store whose URL names none."""

CONNECTIONS: Final = 5
"""Connections of a store whose URL names no number."""

_CONNECT: Final = 10
"""Seconds within which a connection must be made."""

_HANDED_ON: Final = frozenset({
    "application_name", "gsslib", "krbsrvname", "options", "passfile", "service", "sslcert", "sslcrl", "sslkey",
    "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "ssl_max_protocol_version", "ssl_min_protocol_version",
    "target_session_attrs",
})  # fmt: skip
"""Options that the client library knows."""

_PLACES: Final = frozenset({"host", "port", "user", "password", "dbname"})
"""Parts of the URL that may stand among the options instead."""

_OWN: Final = frozenset({"schema", "pool", "pooler", "connect_timeout"})
_WITHOUT_EFFECT: Final = frozenset({"keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"})
_LONGEST_NAME: Final = 63
"""Bytes of a name in Postgres."""

_NOT_IN_A_SCHEMA: Final = frozenset("'${}\0")
"""Characters that mean something where the name of the schema stands in the text of a function."""


class Address(msgspec.Struct, frozen=True):
    """Where a store is and how it is opened; its text has no password."""

    hosts: tuple[tuple[str, int | None], ...] = ()
    user: str | None = None
    password: str | None = None
    database: str | None = None
    schema: str = SCHEMA
    pool: int = CONNECTIONS
    pooler: bool = False
    """Whether a pooler hands out a server connection for each transaction only."""

    connect_timeout: int = _CONNECT
    options: tuple[tuple[str, str], ...] = ()
    """What the client library is given as it is."""

    def __str__(self) -> str:
        hosts = ",".join(_text_of(host, port) for host, port in self.hosts)
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        database = "" if self.database is None else f"/{quote(self.database, safe='')}"
        return f"postgresql://{user}{hosts}{database}"

    __repr__ = __str__

    @property
    def arguments(self) -> dict[str, object]:
        """What the client library is called with to make a connection."""
        ports = {port for _, port in self.hosts}
        found: dict[str, object] = {
            "dsn": f"postgresql://?{urlencode(self.options)}" if self.options else None,
            "host": [host for host, _ in self.hosts] or None,
            "port": None if ports <= {None} else [port or 5432 for _, port in self.hosts],
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "timeout": self.connect_timeout,
        }
        if len(self.hosts) > 1 and "target_session_attrs" not in dict(self.options):
            found["target_session_attrs"] = "read-write"
        return found


def parse(url: str) -> Address:
    """Return what a URL says; raise `StoreError`, without its password, if it cannot be understood."""
    scheme, _, rest = url.partition("://")
    rest, hash_, _ = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, _, path = rest.partition("/")
    if hash_ or "@" in path or "@" in query:  # a piece of the password may be anywhere: name nothing
        raise StoreError(f"{scheme}://: in a password write # as %23, / as %2F, ? as %3F and @ as %40")
    credentials, _, hosts = netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    where = f"{scheme}://{hosts}"
    given = _options(where, query)
    host_list = hosts or given.pop("host", "")
    return Address(
        hosts=_hosts(scheme, host_list, given.pop("port", "")),
        user=unquote(user) or given.pop("user", None),
        password=unquote(password) if colon else given.pop("password", None),
        database=unquote(path) or given.pop("dbname", None),
        schema=_schema(where, given.pop("schema", SCHEMA)),
        pool=_number(where, given, "pool", CONNECTIONS, 2, 1000),
        pooler=_pooler(where, given.pop("pooler", None)),
        connect_timeout=_number(where, given, "connect_timeout", _CONNECT, 1, 3600),
        options=tuple((name, value) for name, value in given.items() if name in _HANDED_ON),
    )


def _options(where: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = _HANDED_ON | _PLACES | _OWN | _WITHOUT_EFFECT
    unknown = sorted(options.keys() - known)
    if unknown:
        raise StoreError(
            f"{where}: unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}; "
            "a setting of the server is written as options=-c%20name=value"
        )
    return options


def _hosts(scheme: str, hosts: str, ports: str) -> tuple[tuple[str, int | None], ...]:
    try:
        found = [_host(one) for one in hosts.split(",")] if hosts else []
        numbers = [_port(one) for one in ports.split(",")] if ports else []
    except ValueError:  # what stands there may be a password: do not repeat it
        raise StoreError(f"{scheme}://: write host:port after it, or several with commas between them") from None
    if numbers and found:
        many = numbers * len(found) if len(numbers) == 1 else numbers
        found = [(host, port or other) for (host, port), other in zip(found, many, strict=False)]
    elif numbers:
        found = [("localhost", numbers[0])]
    return tuple(found)


def _host(text: str) -> tuple[str, int | None]:
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("a bracket is missing")
        colon, port = rest[:1], rest[1:]
    elif not text.startswith("/"):
        host, colon, port = text.partition(":")
    if not host or ":" in port:
        raise ValueError("a host is missing")
    return unquote(host), _port(port) if colon else None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError("no port")
    return int(text)


def _text_of(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else quote(host, safe="")
    return shown if port is None else f"{shown}:{port}"


def _number(where: str, options: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.pop(name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise StoreError(f"{where}: {name} must be a number from {least} to {most}, got {text!r}")
    return int(text)


def _schema(where: str, name: str) -> str:
    if not name or len(name.encode()) > _LONGEST_NAME or name.startswith("pg_"):
        raise StoreError(
            f"{where}: schema must be a name of at most {_LONGEST_NAME} bytes that does not begin with pg_, got {name!r}"
        )
    if not _NOT_IN_A_SCHEMA.isdisjoint(name):
        raise StoreError(f"{where}: schema must be a name without ', $, {{ and }}, got {name!r}")
    return name


def _pooler(where: str, mode: str | None) -> bool:
    if mode not in (None, "transaction"):
        raise StoreError(f"{where}: the only pooler mode is pooler=transaction, got {mode!r}; leave it out otherwise")
    return mode is not None
