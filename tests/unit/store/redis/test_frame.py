"""Function calls as they are sent."""

from typing import Any

import hiredis
import msgspec
import pytest

from resurgam.store.redis.library import library
from resurgam.store.redis.node import Frame, Group

KEYS = [b"x:{p00}:", b"x:{p01}:"]


def sent(frame: Frame, group: Group) -> list[Any]:
    """Return a call as a server reads it."""
    reader = hiredis.Reader()
    reader.feed(frame.pack(group))
    command: list[Any] = reader.gets()
    assert reader.gets() is False
    return command


def group_of(*parts: object) -> Group:
    group = Group(1, "read", parts[0], print)
    group.calls += [(part, print) for part in parts[1:]]
    return group


@pytest.mark.parametrize("moment", [None, "1700000000000"])
def test_a_call_names_its_function_its_key_and_what_all_calls_of_a_store_have(moment):
    frame = Frame(library(), KEYS, 5000, "owner-ä", None if moment is None else lambda: moment)
    parts = [["ä\r\n", 1], ["x" * 70_000, None]]
    for _ in range(2):  # the second time most of it is known
        *command, packed = sent(frame, group_of(*parts))
        arguments = [(moment or "").encode(), b"5000", "owner-ä".encode()]
        assert command == [b"FCALL", library().functions["read"], b"1", KEYS[1], *arguments]
        assert msgspec.msgpack.decode(packed) == parts


def test_each_call_that_may_take_leases_has_a_number_of_its_own():
    frame = Frame(library(), KEYS, 5000, "owner", lambda: "")
    for number in (1, 2):
        group = Group(1, "claim", ["first", ["default"], 1], print)
        *_, packed, sent_number = sent(frame, group)
        assert (group.number, sent_number) == (number, b"%d" % number)
        assert msgspec.msgpack.decode(packed) == [["first", ["default"], 1]]
    assert group_of(["order"]).number is None


def test_one_who_only_looks_calls_a_script_that_gets_the_name_of_the_function():
    frame = Frame(library(), KEYS, 5000, "owner", None, reads_only=True)
    command, _, number, key, _, _, _, packed, function = sent(frame, group_of(["order"]))

    assert (command, number, key, function) == (b"EVALSHA_RO", b"1", KEYS[1], library().functions["read"])
    assert msgspec.msgpack.decode(packed) == [["order"]]
