"""Tags that every store can index, and those that are refused before they reach one."""

import pytest

from resurgam.core.tags import LONGEST, check_tag


def test_tags_of_the_largest_size_are_accepted():
    check_tag("n" * LONGEST, "ä" * (LONGEST // 2))
    check_tag("n", "")


@pytest.mark.parametrize(
    ("name", "value", "error", "reason"),
    [
        ("a", 1, TypeError, "names and values of tags must be strings, got 'a': 1"),
        (1, "a", TypeError, "names and values of tags must be strings, got 1: 'a'"),
        ("a", "x" * (LONGEST + 1), ValueError, "the value of a tag must have at most 1000 bytes, got 1001"),
        ("ä" * LONGEST, "x", ValueError, "the name of a tag must have at most 1000 bytes, got 2000"),
        ("a", "b\0", ValueError, "the value of a tag must not contain NUL"),
        ("a", "\ud800", ValueError, "the value of a tag must be valid Unicode"),
    ],
)
def test_a_tag_that_some_store_cannot_index_is_refused(name, value, error, reason):
    with pytest.raises(error, match=reason):
        check_tag(name, value)


def test_a_tag_has_a_name():
    with pytest.raises(ValueError, match="the name of a tag must be a non-empty string, got '' with the value 'x'"):
        check_tag("", "x")
