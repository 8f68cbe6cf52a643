"""What a tag may be. Every store keeps tags in an index, so the rules are those of the strictest one."""

from typing import Final

LONGEST: Final = 1000
"""Bytes that the name and the value of a tag may have, each: an entry of an index has little room."""


def check_tag(name: object, value: object) -> None:
    """Raise `TypeError` for a tag that is not text, and `ValueError` for one that some store cannot index."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"names and values of tags must be strings, got {name!r}: {value!r}")
    if not name:
        raise ValueError(f"the name of a tag must be a non-empty string, got '' with the value {value[:40]!r}")
    for what, text in (("name", name), ("value", value)):
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ValueError(f"the {what} of a tag must be valid Unicode, got {text[:40]!r}") from None
        if "\0" in text:
            raise ValueError(f"the {what} of a tag must not contain NUL, got {text[:40]!r}")
        if size > LONGEST:
            raise ValueError(f"the {what} of a tag must have at most {LONGEST} bytes, got {size}: {text[:40]!r}...")
