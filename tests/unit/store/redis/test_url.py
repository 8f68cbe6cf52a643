import pytest

from resurgam.core.errors import StoreError
from resurgam.store.redis.url import Topology, parse


def test_a_plain_url_names_one_server():
    address = parse("redis://localhost")
    assert address.topology is Topology.SINGLE
    assert address.endpoints == (("localhost", 6379),)
    assert (address.database, address.prefix, address.partitions, address.wait) == (0, "resurgam:", 16, 0)


def test_servers_are_listed_with_commas():
    assert parse("redis://one:1,two,[::1]:3").endpoints == (("one", 1), ("two", 6379), ("::1", 3))


def test_user_password_and_database_are_decoded():
    address = parse("redis://me:p%40ss%2Fword@host/7")
    assert (address.user, address.password, address.database) == ("me", "p@ss/word", 7)
    assert parse("redis://:secret@host").user is None


def test_a_sentinel_url_names_the_primary_and_its_database():
    address = parse("redis+sentinel://one,two:1/mymaster/3")
    assert address.topology is Topology.SENTINEL
    assert address.endpoints == (("one", 26379), ("two", 1))
    assert (address.primary, address.database) == ("mymaster", 3)


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
def test_a_second_s_asks_for_tls(scheme):
    assert parse(f"{scheme}://host").tls


def test_a_prefix_ends_with_one_colon():
    assert parse("redis://host?prefix=shop").prefix == "shop:"
    assert parse("redis://host?prefix=shop:").prefix == "shop:"


def test_the_text_of_an_address_has_no_password():
    address = parse("rediss+sentinel://me:secret@one,two/mymaster/3?prefix=x")
    assert str(address) == repr(address) == "rediss+sentinel://one:26379,two:26379/mymaster/3"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+ring://host", "names no Redis store"),
        ("redis://", "write host:port"),
        ("redis://me:secret@", "write host:port"),
        ("redis://host:secret", "write host:port"),
        ("redis://host:1,,host:2", "write host:port"),
        ("redis://:secret@host/one", "the database must be a number, got 'one'"),
        ("redis://:secret@host/1/2", "the database must be a number"),
        ("redis+cluster://:secret@host/1", "a cluster has no numbered databases"),
        ("redis+sentinel://:secret@host", "name the primary"),
        ("redis://:secret@host?partitions=0", "partitions must be a number from 1 to 1024, got '0'"),
        ("redis://:secret@host?partitions=many", "partitions must be a number"),
        ("redis://:secret@host?wait=-1", "wait must be a number from 0 to 100"),
        ("redis://:secret@host?timeout=1", "unknown option 'timeout'; known are"),
        ("redis://:secret@host?prefix=", "prefix must be a non-empty text"),
        ("redis://:secret@host?prefix=a{b}", "without braces"),
        ("redis://:sec#ret@host", "write # as %23"),
        ("redis://:sec/ret@host", "/ as %2F"),
        ("redis://:sec?ret@host", r"\? as %3F"),
        ("redis://:secret@[::1", "write host:port"),
        ("redis://:secret@host:0", "write host:port"),
        ("redis://:secret@host:99999", "write host:port"),
        (f"redis://:secret@{'a' * 64}.example", "write host:port"),
        ("redis://:secret@a..b", "write host:port"),
        ("redis://:secret@a\0b", "write host:port"),
        (f"redis://:secret@host/{'9' * 5000}", "the database must be a number"),
        (f"redis://:secret@host?wait={'9' * 5000}", "wait must be a number"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused_without_its_password(url, reason):
    with pytest.raises(StoreError, match=reason) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
    assert ":sec" not in str(refused.value)
    assert "ret" not in str(refused.value)
    assert "\n" not in str(refused.value)
