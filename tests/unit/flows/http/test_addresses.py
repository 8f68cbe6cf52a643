import pytest

from resurgam.flows.http.addresses import AddressRefused, AllowList
from resurgam.flows.http.outbound import Outbound

DEFAULT = AllowList(("*",))

METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "fe80::a9fe:a9fe",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "2002:a9fe:a9fe::1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::a9fe:a9fe",
    "2001:0:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "2001:db8::5efe:169.254.169.254",
    "2001:db8::200:5efe:a9fe:a9fe",
]
NOWHERE = ["0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "::ffff:0.0.0.0"]
ORDINARY = [
    "127.0.0.1",
    "::1",
    "10.1.2.3",
    "192.168.0.1",
    "fd12::1",
    "93.184.216.34",
    "2606:2800::1",
    "::ffff:10.0.0.1",
]


@pytest.mark.parametrize("address", METADATA + NOWHERE)
def test_special_addresses_are_refused_in_every_form(address):
    with pytest.raises(AddressRefused, match="is refused"):
        DEFAULT.check("shop.example", [address])


@pytest.mark.parametrize("address", ORDINARY)
def test_ordinary_loopback_and_private_addresses_are_allowed(address):
    DEFAULT.check("shop.example", [address])


def test_every_address_of_a_host_counts():
    with pytest.raises(AddressRefused, match=r"'shop\.example' \(169\.254\.169\.254\)"):
        DEFAULT.check("shop.example", ["93.184.216.34", "169.254.169.254"])


def test_a_listed_host_is_called_and_another_is_not():
    allowed = AllowList(("shop.example", "*.inner.example"))

    allowed.check("Shop.Example.", ["10.0.0.1"])
    allowed.check("a.b.inner.example", ["10.0.0.1"])
    for host in ("inner.example", "notshop.example", "shop.example.evil", "evil-inner.example", "10.0.0.1"):
        with pytest.raises(AddressRefused, match="allow-list"):
            allowed.check(host, ["10.0.0.1"])


def test_a_listed_host_does_not_open_the_way_to_metadata():
    with pytest.raises(AddressRefused, match="link-local"):
        AllowList(("shop.example", "0.0.0.0/0", "::/0")).check("shop.example", ["169.254.169.254"])


def test_a_listed_network_narrows_by_every_address():
    allowed = AllowList(("10.0.0.0/8",))

    allowed.check("shop.example", ["10.0.0.1", "::ffff:10.0.0.2"])
    with pytest.raises(AddressRefused, match="allow-list"):
        allowed.check("shop.example", ["10.0.0.1", "11.0.0.1"])


def test_a_special_address_that_is_listed_itself_is_allowed_and_its_neighbours_are_not():
    allowed = AllowList(("*", "169.254.20.0/24"))

    allowed.check("mesh", ["169.254.20.10"])
    allowed.check("mesh", ["::ffff:169.254.20.10"])
    allowed.check("elsewhere", ["93.184.216.34"])
    with pytest.raises(AddressRefused):
        allowed.check("mesh", ["169.254.169.254"])


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.1/8", "300.0.0.1", "http://shop.example", "shop example", "a:b", "*x", "shop*"]
)
def test_an_entry_that_means_nothing_is_refused_at_once(entry):
    with pytest.raises(ValueError, match="allow"):
        Outbound(allow=(entry,))


def test_options_are_checked():
    with pytest.raises(TypeError, match="allow"):
        Outbound(allow="shop.example")
    with pytest.raises(ValueError, match="per_host"):
        Outbound(per_host=0)
    with pytest.raises(ValueError, match="connect_timeout"):
        Outbound(connect_timeout=0)
