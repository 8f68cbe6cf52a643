"""Who may ask: the roles of callers, and the guard that every request passes."""

from enum import StrEnum
from typing import Protocol

from starlette.requests import HTTPConnection


class Role(StrEnum):
    """What a caller may do: see, act on instances, or change the catalog and the keys. Each includes those before."""

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


class NoKeys:
    """Lets every caller pass: for loopback, or behind a program with its own access control."""

    async def check(self, connection: HTTPConnection, role: Role) -> None:
        """Let it pass."""
