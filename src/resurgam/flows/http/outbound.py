"""What a worker may call, and how much at a time."""

from typing import TYPE_CHECKING, Any

import msgspec

from resurgam.core.retry import is_whole
from resurgam.flows.http.addresses import AllowList

if TYPE_CHECKING:
    import httpx2


class Outbound(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for calls of HTTP steps, their compensations and their health checks.

    *allow* lists what may be called: host names (``"shop.example"``, ``"*.example"``), addresses or networks
    (``"10.0.0.0/8"``), and ``"*"`` for every host. Every address of a host must be permitted. Whatever is listed,
    link-local and metadata addresses, multicast, broadcast and unspecified ones are refused, unless *allow* names that
    very address or a network within theirs: ``("*", "169.254.20.10")``.

    At most *max_connections* are open at a time, and *per_host* to one host and port; further calls wait, and the
    timeout of their step starts when they are sent. *transport* sends the requests instead of the network, in tests.
    """

    allow: tuple[str, ...] = ("*",)
    max_connections: int = 256
    per_host: int = 64
    connect_timeout: float = 5.0
    transport: "httpx2.AsyncBaseTransport | Any" = None

    def __post_init__(self) -> None:
        AllowList(self.allow)
        for option in ("max_connections", "per_host"):
            if not is_whole(getattr(self, option), 1):
                raise ValueError(f"{option} must be a whole number, at least 1, got {getattr(self, option)!r}")
        if not self.connect_timeout > 0:
            raise ValueError(f"connect_timeout must be more than 0 seconds, got {self.connect_timeout!r}")
