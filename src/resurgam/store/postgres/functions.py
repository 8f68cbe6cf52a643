"""Join the SQL files into the functions of this version, and install them.

Each file defines functions, written as ``{schema}.name_{code}``: *schema* is the schema of the store, *code* a hash of all
files. Several versions of Resurgam can use one schema, each with functions of its own. ``{channel}`` is the channel of
notifications, as a literal.
"""

import functools
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

_FOLDER: Final = Path(__file__).parent / "functions"
_DEFINED: Final = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION \{schema\}\.(\w+)_\{code\}", re.IGNORECASE)


_REMOVE: Final = """
DO $do$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = {text}::regnamespace AND right(p.proname, 13) = '_{code}'
    LOOP
        EXECUTE 'DROP FUNCTION IF EXISTS ' || one.name || ' CASCADE';
    END LOOP;
    FOR one IN
        SELECT t.oid::regtype AS name FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
        WHERE t.typnamespace = {text}::regnamespace AND right(t.typname, 13) = '_{code}'
    LOOP
        EXECUTE 'DROP TYPE ' || one.name || ' CASCADE';
    END LOOP;
END $do$;
"""
"""Removes the functions and types of one version, if some of them are there."""


class Library(msgspec.Struct, frozen=True):
    """The functions of one version, without the schema that they are installed in."""

    code: str
    text: str
    names: tuple[str, ...]

    def script(self, schema: str) -> str:
        """Return the statements that install the functions in a schema, in place of those of this version that are there."""
        remove = _REMOVE.replace("{text}", literal(quoted(schema)))
        return f"SET LOCAL check_function_bodies = off; {self.in_schema(remove + self.text, schema)}"

    def in_schema(self, text: str, schema: str) -> str:
        """Return statements that use the functions, for one schema."""
        return in_schema(text, schema).replace("{code}", self.code)

    def call(self, schema: str, function: str, arguments: int) -> str:
        """Return the statement that calls a function."""
        places = ", ".join(f"${n}" for n in range(1, arguments + 1))
        return f"SELECT * FROM {quoted(schema)}.{function}_{self.code}({places})"  # noqa: S608 -- the names are our own


@functools.cache
def library() -> Library:
    """Return the functions of this version."""
    files = [*sorted((_FOLDER / "shared").glob("*.sql")), *sorted(_FOLDER.glob("*.sql"))]
    return join([file.read_text() for file in files])


def join(texts: list[str]) -> Library:
    """Return the functions that these texts define."""
    text = "\n".join(texts)
    code = blake2b(text.encode(), digest_size=6).hexdigest()
    return Library(code=code, text=text, names=tuple(dict.fromkeys(_DEFINED.findall(text))))


def in_schema(text: str, schema: str) -> str:
    """Return statements for one schema."""
    return text.replace("{schema}", quoted(schema)).replace("{channel}", literal(channel_of(schema)))


def channel_of(schema: str) -> str:
    """Return the channel of the notifications of a store; its name is as short as one may be."""
    name = f"resurgam:{schema}"
    return name if len(name.encode()) < 64 else f"resurgam:{blake2b(schema.encode(), digest_size=16).hexdigest()}"


def quoted(name: str) -> str:
    """Return a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a constant."""
    return "'" + text.replace("'", "''") + "'"
