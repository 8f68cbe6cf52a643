"""Which addresses may be called. A name is judged by every address that it resolves to; see `Outbound`."""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from resurgam.core.errors import ResurgamError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_REFUSED: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ip_network(network), what)
    for what, networks in {
        "link-local, where machines of a cloud get their credentials": ("169.254.0.0/16", "fe80::/10"),
        "a metadata service, which gives credentials to callers": (
            *("fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128"),
            *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
        ),
        "unspecified": ("0.0.0.0/8", "::/128"),
        "multicast": ("224.0.0.0/4", "ff00::/8"),
        "reserved or broadcast": ("240.0.0.0/4",),
    }.items()
    for network in networks
)

_HOLDS_IPV4: Final = tuple(map(IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""IPv6 networks whose last four bytes are the IPv4 address that is reached: by compatibility, or by a translator."""

_HOST: Final = re.compile(r"(?:\*\.)?[\w-]+(?:\.[\w-]+)*\.?")


class AddressRefused(ResurgamError):
    """A host, or an address that it resolves to, must not be called from here."""


class AllowList:
    """Hosts and networks that may be called; see `Outbound` for what the entries mean."""

    def __init__(self, entries: Sequence[str]) -> None:
        if isinstance(entries, str) or not all(isinstance(entry, str) for entry in entries):
            raise TypeError(f"allow must be a list of hosts and networks, got {entries!r}")
        self._any_host = "*" in entries
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        for entry in entries:
            if entry != "*":
                self._add(entry)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry.strip("[]")))
        except ValueError as error:
            # Digits, dots, colons and a length only: meant as a network, whatever is wrong with it.
            if re.fullmatch(r"[\d.:/]+", entry) or not _HOST.fullmatch(entry):
                raise ValueError(
                    f"allow: {entry!r} is neither a host ('shop.example', '*.example') nor a network "
                    f"('10.0.0.0/8') nor '*' ({error})"
                ) from None
            self._hosts.add(_plain(entry))

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Raise `AddressRefused` unless a host may be called at every one of its addresses."""
        named = self._any_host or self._names(_plain(host))
        for text in addresses:
            address = ip_address(text)
            where = f"host {host!r}" if host == text else f"host {host!r} ({text})"
            for form in _forms(address):
                self._check_form(where, form)
            if not named and not self._within(_actual(address)):
                raise AddressRefused(f"{where} is not on the allow-list of this worker; add it to Outbound(allow=...)")

    def _names(self, host: str) -> bool:
        labels = host.split(".")
        return host in self._hosts or any(f"*.{'.'.join(labels[at:])}" in self._hosts for at in range(1, len(labels)))

    def _within(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _check_form(self, where: str, address: Address) -> None:
        for refused, what in _REFUSED:
            if address in refused and not any(
                address in network and _is_part(network, refused) for network in self._networks
            ):
                raise AddressRefused(
                    f"{where} is refused: {address} is {what}; if it is meant, name that address or its network in "
                    "Outbound(allow=...)"
                )


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _is_part(network: Network, of: Network) -> bool:
    """Whether a listed network lies within a refused one: only then it was meant, and not just included."""
    return network.version == of.version and network.subnet_of(of)  # type: ignore[arg-type]  # of the same version


def _actual(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _forms(address: Address) -> Iterator[Address]:
    """Return an address, and the IPv4 addresses that are reached by it if it is an IPv6 address that holds some."""
    yield address
    if isinstance(address, IPv4Address):
        return
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif any(address in network for network in _HOLDS_IPV4) and int(address) > 1:
        yield last
    if int(address) >> 32 & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        yield last
