"""The URLs of Redis stores.

- ``redis://[user:password@]host[:port][/db]``: one server, or a primary with replicas that share the list
  ``host1:port1,host2:port2``;
- ``redis+cluster://host:port,...``: a Redis Cluster, found by any of its nodes;
- ``redis+sentinel://host:port,.../name[/db]``: the primary that the sentinels know as *name*;
- ``rediss``, ``rediss+cluster``, ``rediss+sentinel``: the same over TLS.

Options: ``partitions`` (16), ``prefix`` (``resurgam:``), ``wait`` (replicas that must acknowledge each write), and for TLS
``ca`` (a file of certificates to trust) and ``insecure=1`` (trust any certificate).
"""

import ssl
from enum import Enum
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from resurgam.core.errors import StoreError

PARTITIONS: Final = 16
"""Partitions of a store whose URL names no number."""

MOST_PARTITIONS: Final = 1024

PREFIX: Final = "resurgam:"
"""The first part of every key, unless the URL names another."""

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_OPTIONS: Final = frozenset({"partitions", "prefix", "wait", "ca", "insecure"})

Endpoint = tuple[str, int]
"""Host and port of a server."""


class Topology(Enum):
    """How the servers of a store belong together."""

    SINGLE = "redis"
    CLUSTER = "redis+cluster"
    SENTINEL = "redis+sentinel"


class Address(msgspec.Struct, frozen=True):
    """Where a store is and how it is opened; its text has no password."""

    topology: Topology
    endpoints: tuple[Endpoint, ...]
    user: str | None = None
    password: str | None = None
    database: int = 0
    primary: str | None = None
    """The name by which sentinels know the primary."""

    tls: bool = False
    ca: str | None = None
    insecure: bool = False
    prefix: str = PREFIX
    partitions: int = PARTITIONS
    wait: int = 0

    def __str__(self) -> str:
        """Return the URL without user, password and options: fit for an error."""
        scheme = self.topology.value.replace("redis", "rediss", 1) if self.tls else self.topology.value
        hosts = ",".join(text_of(endpoint) for endpoint in self.endpoints)
        path = "".join(f"/{part}" for part in (self.primary, self.database or None) if part is not None)
        return f"{scheme}://{hosts}{path}"

    __repr__ = __str__

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what TLS connections are made with; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise StoreError(f"{self}: the certificates in {self.ca!r} cannot be read: {error}") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def text_of(endpoint: Endpoint) -> str:
    """Return a host and port as they are written in a URL."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(url: str) -> Address:
    """Return what a URL says; raise `StoreError`, without its password, if it cannot be understood."""
    parts = _split(url)
    topology, tls = _topology(parts.scheme)
    if parts.fragment or "@" in f"{parts.path}{parts.query}":  # a piece of the password may be anywhere: name nothing
        raise StoreError(f"{parts.scheme}://: in a password write # as %23, / as %2F, ? as %3F and @ as %40")
    credentials, _, hosts = parts.netloc.rpartition("@")
    where = f"{parts.scheme}://{hosts}{parts.path}"
    user, colon, password = credentials.partition(":")
    endpoints = _endpoints(parts.scheme, hosts, _SENTINEL_PORT if topology is Topology.SENTINEL else _PORT)
    primary, database = _path(where, topology, parts.path)
    options = _options(where, parts)
    return Address(
        topology=topology,
        endpoints=endpoints,
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        database=database,
        primary=primary,
        tls=tls,
        ca=options.get("ca"),
        insecure=_number(where, options, "insecure", 0, 0, 1) == 1,
        prefix=_prefix(where, options.get("prefix")),
        partitions=_number(where, options, "partitions", PARTITIONS, 1, MOST_PARTITIONS),
        wait=_number(where, options, "wait", 0, 0, 100),
    )


def is_redis(scheme: str) -> bool:
    """Whether URLs with this scheme name a Redis store."""
    return scheme.split("+", 1)[0] in ("redis", "rediss")


def _split(url: str) -> SplitResult:
    """Split a URL as `urlsplit` does, which in recent versions of Python takes no address in brackets among several hosts."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return SplitResult(scheme, netloc, slash + path, query, fragment)


def _topology(scheme: str) -> tuple[Topology, bool]:
    try:
        return Topology(scheme.replace("rediss", "redis", 1)), scheme.startswith("rediss")
    except ValueError:
        known = ", ".join(f"{topology.value}://" for topology in Topology)
        raise StoreError(f"{scheme}:// names no Redis store; known are {known} and rediss with TLS") from None


def _endpoints(scheme: str, hosts: str, port: int) -> tuple[Endpoint, ...]:
    try:
        return tuple(_endpoint(one, port) for one in hosts.split(","))
    except ValueError:  # what stands there may be a password: do not repeat it
        raise StoreError(f"{scheme}://: write host:port after it, or several with commas between them") from None


def _endpoint(text: str, port: int) -> Endpoint:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or not parts.hostname.isprintable() or parts.port == 0:
        raise ValueError("a host is missing, or a port")
    parts.hostname.encode("idna")  # as it is looked up; a label of a name may be too long
    return parts.hostname, parts.port or port


def _path(where: str, topology: Topology, path: str) -> tuple[str | None, int]:
    names = [unquote(name) for name in path.split("/") if name]
    primary = None
    if topology is Topology.SENTINEL:
        if not names:
            raise StoreError(f"{where}: name the primary after the sentinels, such as /mymaster")
        primary = names.pop(0)
    if topology is Topology.CLUSTER and names:
        raise StoreError(f"{where}: a cluster has no numbered databases; leave out /{names[0]}")
    if not names:
        return primary, 0
    if len(names) > 1 or not _is_number(names[0]):
        raise StoreError(f"{where}: the database must be a number, got {'/'.join(names)!r}")
    return primary, int(names[0])


def _options(where: str, parts: SplitResult) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise StoreError(f"{where}: unknown option {unknown[0]!r}; known are {', '.join(sorted(_OPTIONS))}")
    return options


def _number(where: str, options: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (_is_number(text) and least <= int(text) <= most):
        raise StoreError(f"{where}: {name} must be a number from {least} to {most}, got {text!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _prefix(where: str, prefix: str | None) -> str:
    if prefix is None:
        return PREFIX
    if not prefix or "{" in prefix or "}" in prefix:
        raise StoreError(f"{where}: prefix must be a non-empty text without braces, got {prefix!r}")
    return prefix if prefix.endswith(":") else f"{prefix}:"
