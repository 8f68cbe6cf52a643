"""The URLs of Postgres stores: what they say, what they refuse, and that no password is shown."""

import pytest

from resurgam.errors import StoreError
from resurgam.store.open import shown_url
from resurgam.store.postgres.url import Address, parse

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://", Address()),
        ("postgres://host/shop", Address(hosts=(("host", None),), database="shop")),
        (
            "postgresql://me:p%40ss@host:5433/shop",
            Address(hosts=(("host", 5433),), user="me", password="p@ss", database="shop"),
        ),
        ("postgresql://one:1,two:2/db", Address(hosts=(("one", 1), ("two", 2)), database="db")),
        ("postgresql://one,two/db?port=7", Address(hosts=(("one", 7), ("two", 7)), database="db")),
        ("postgresql://[::1]:5433,[::2]/db", Address(hosts=(("::1", 5433), ("::2", None)), database="db")),
        ("postgresql:///db?host=/var/run/postgresql", Address(hosts=(("/var/run/postgresql", None),), database="db")),
        ("postgresql://%2Ftmp/db", Address(hosts=(("/tmp", None),), database="db")),
        ("postgresql://h?user=me&password=x&dbname=db", Address(hosts=(("h", None),), user="me", password="x", database="db")),
        (
            "postgresql://h/db?schema=jobs&pool=9&pooler=transaction&connect_timeout=3&keepalives=1",
            Address(hosts=(("h", None),), database="db", schema="jobs", pool=9, pooler=True, connect_timeout=3),
        ),
        (
            "postgresql://h/db?sslmode=require&application_name=shop",
            Address(
                hosts=(("h", None),), database="db", options=(("sslmode", "require"), ("application_name", "shop"))
            ),
        ),
    ],
)  # fmt: skip
def test_what_a_url_says(url, address):
    assert {name: getattr(parse(url), name) for name in Address.__struct_fields__} == {
        name: getattr(address, name) for name in Address.__struct_fields__
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql://me:{SECRET}@host:port/db", "write host:port after it"),
        (f"postgresql://me:{SECRET}@:5432/db", "write host:port after it"),
        (f"postgresql://me:{SECRET}@host:99999/db", "write host:port after it"),
        (f"postgresql://me:{SECRET}@[::1/db", "write host:port after it"),
        (f"postgresql://me:{SECRET}/x@host/db", "in a password write # as %23"),
        (f"postgresql://me:{SECRET}#x@host/db", "in a password write # as %23"),
        (f"postgresql://me:{SECRET}?x@host/db", "in a password write # as %23"),
        (f"postgresql://me:{SECRET}@host/db?schemes=x", "unknown option 'schemes'; known are application_name"),
        (f"postgresql://me:{SECRET}@host/db?pool=1", "pool must be a number from 2 to 1000, got '1'"),
        (f"postgresql://me:{SECRET}@host/db?pool=many", "pool must be a number"),
        (f"postgresql://me:{SECRET}@host/db?pooler=session", "the only pooler mode is pooler=transaction"),
        (f"postgresql://me:{SECRET}@host/db?schema=pg_x", "does not begin with pg_"),
        (f"postgresql://me:{SECRET}@host/db?schema=", "schema must be a name"),
        (f"postgresql://me:{SECRET}@host/db?schema={'x' * 64}", "of at most 63 bytes"),
        (f"postgresql://me:{SECRET}@host/db?schema=o'clock", "without ', $, { and }"),
        (f"postgresql://me:{SECRET}@host/db?schema=a$$b", "without ', $, { and }"),
        (f"postgresql://me:{SECRET}@host/db?schema={{code}}", "without ', $, { and }"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused_without_its_password(url, said):
    with pytest.raises(StoreError) as refused:
        parse(url)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url", [f"postgresql://me:{SECRET}@host/db", f"postgresql://host/db?user=me&password={SECRET}"]
)
def test_a_url_is_shown_without_its_password(url):
    assert shown_url(url) == str(parse(url)) == repr(parse(url)) == "postgresql://me@host/db"


def test_of_several_hosts_the_one_that_takes_writes_is_used():
    assert parse("postgresql://one,two/db").arguments["target_session_attrs"] == "read-write"
    assert "target_session_attrs" not in parse("postgresql://one/db").arguments
    assert "target_session_attrs" not in parse("postgresql://one,two/db?target_session_attrs=any").arguments
