"""Who may ask: the roles of callers, and the guard that every request passes."""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from resurgam.web.problems import Problem

_FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host"})
"""Headers that a proxy adds."""

_KEPT: Final = 64
"""How many hosts are kept with what they mean: every request names one, and most the same."""

_WEBHOOK: Final = re.compile(r"(/webhook/.*)/[^/]+/*")


class Role(StrEnum):
    """What a caller may do: see, act on instances, or change the catalog. Each includes those before."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether a caller with this role may do what *other* may."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)


class Guard(Protocol):
    """Decides whether a request may pass."""

    async def check(self, connection: HTTPConnection, role: Role) -> None:
        """Raise `Problem` (401 or 403) unless the caller has this role."""
        ...


class KnownKeys(Protocol):
    """The keys that callers may have."""

    async def role_of(self, key: str) -> Role | None:
        """Return the role of a key; None for one that is unknown or revoked."""
        ...


class KeyGuard:
    """Lets callers pass that send a key of the role that a route needs, as ``Authorization: Bearer``."""

    def __init__(self, keys: KnownKeys) -> None:
        self._keys = keys

    async def check(self, connection: HTTPConnection, role: Role) -> None:
        """Refuse a caller without a key (401), with an unknown or revoked one (401), or of a lower role (403)."""
        found = await self._keys.role_of(_bearer(connection))
        if found is None:
            raise _unauthorized("bad_key", "the key is unknown or revoked; `resurgam keys list` lists the keys")
        if not found.includes(role):
            raise Problem(403, "role_too_low", f"the key has the role {found}, and this needs {role}")


class NoKeys:
    """Lets callers pass on this machine that are not web pages of other sites; needs no key.

    A browser sends requests of any page to a server on loopback. ``Origin`` tells of them, and ``Host`` tells of a page
    whose name was made to mean this machine. *hosts* are the names under which a program may be asked beside those of
    loopback.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = frozenset(map(str.lower, hosts))

    async def check(self, connection: HTTPConnection, role: Role) -> None:
        """Refuse a request from another site, for another host, or by way of a proxy (403)."""
        refuse_other_sites(connection)
        host = _host_of(connection)
        if host in self._hosts:
            return
        if not is_loopback(host):
            detail = f"without keys only requests to this machine are answered, not to {host or 'no host'}"
            raise Problem(403, "not_local", f"{detail}; require keys, or ask for localhost")
        if not _FORWARDED.isdisjoint(connection.headers.keys()):
            detail = "without keys no request of a proxy is answered; require keys: resurgam serve --require-keys"
            raise Problem(403, "not_local", detail)


class NoOtherSites:
    """Lets every caller pass that is not a web page of another site; needs no key."""

    async def check(self, connection: HTTPConnection, role: Role) -> None:
        """Refuse a request from another site (403)."""
        refuse_other_sites(connection)


def refuse_other_sites(connection: HTTPConnection) -> None:
    """Raise `Problem` (403) for a request that a browser sends for a page of another site."""
    origin = connection.headers.get("origin")
    if origin is None:
        return
    site = _site(origin)
    if site[0] is None or site != _site(f"//{connection.headers.get('host', '')}"):
        raise Problem(403, "other_site", "pages of other sites may not use this server")


def shown_path(connection: HTTPConnection) -> str:
    """Return the path of a request as a log or an error may have it: that of a webhook ends with a secret."""
    return _WEBHOOK.sub(r"\1/***", connection.url.path)


@lru_cache(_KEPT)
def is_loopback(host: str) -> bool:
    """Whether a host name or an address means this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(_KEPT)
def _site(url: str) -> tuple[str | None, int | None]:
    """Return the host and the port of a URL; a port that its scheme implies is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return host, None if port in (80, 443) else port


def _host_of(connection: HTTPConnection) -> str:
    return _site(f"//{connection.headers.get('host', '')}")[0] or ""


def _bearer(connection: HTTPConnection) -> str:
    """Return the key that a caller sends; it is never repeated in an error."""
    given = connection.headers.getlist("authorization")
    scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        detail = "send a key as the header Authorization: Bearer KEY; `resurgam keys create NAME --role read` makes one"
        raise _unauthorized("no_key", detail)
    return key.strip()


def _unauthorized(code: str, detail: str) -> Problem:
    return Problem(401, code, detail, {"WWW-Authenticate": "Bearer"})
