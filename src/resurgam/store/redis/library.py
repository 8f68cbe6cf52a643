"""Join the Lua files into one library of Redis Functions.

The library is named after a hash of its text, and so is each function: several versions of Resurgam can use one server, and
a server that does not know this version says so. The order is: the frame, the shared files as their lines ``-- uses: name``
ask for, then the verbs, each in a block of its own. A verb file defines a local function of its own name, which is given
one part, or one with ``_batch`` after the name, which is given all of them. The server refuses a write of a file that says
``-- reads only:`` before the keys that it reads, and runs one that says ``-- deletes:`` even if its memory is full.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

_FOLDER: Final = Path(__file__).parent / "scripts"
_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_READS_ONLY: Final = re.compile(r"^-- reads only: ", re.MULTILINE)
_DELETES: Final = re.compile(r"^-- deletes: ", re.MULTILINE)
_PLACE: Final = "@VERSION@"
_SCRIPT: Final = """#!lua flags=no-writes
local functions = {{}}
local function register_function(registered)
  functions[registered.function_name] = registered.callback
end
local redis = setmetatable({{ register_function = register_function }}, {{ __index = redis }})
{text}
return functions[ARGV[5]](KEYS, ARGV)
"""


class Library(msgspec.Struct, frozen=True):
    """The text of the library and the names of its functions."""

    name: str
    text: str
    functions: Mapping[str, bytes]
    """The name of the function of each verb."""

    reading: frozenset[str]
    """The verbs that only read."""

    script: str
    """The same as a script that calls the function which its last argument names, and cannot write.

    A library is stored by the server and sent to its replicas; a script is not. Who only looks loads the script.
    """


@functools.cache
def library() -> Library:
    """Return the library of this version."""
    shared = {file.stem: file.read_text() for file in (_FOLDER / "shared").glob("*.lua")}
    verbs = {file.stem: file.read_text() for file in sorted(_FOLDER.glob("*.lua"))}
    return join(verbs.pop("frame"), shared, verbs)


def join(frame: str, shared: Mapping[str, str], verbs: Mapping[str, str]) -> Library:
    """Return the library that these files make."""
    pieces = [frame, *(shared[name] for name in _in_order(shared)), *(_block(verb, verbs[verb]) for verb in verbs)]
    joined = "\n".join(pieces)
    version = blake2b(joined.encode(), digest_size=6).hexdigest()
    text = joined.replace(_PLACE, version)
    return Library(
        name=f"resurgam_{version}",
        text=f"#!lua name=resurgam_{version}\n{text}",
        functions={verb: f"{verb}_{version}".encode() for verb in verbs},
        reading=frozenset(verb for verb, text in verbs.items() if _READS_ONLY.search(text)),
        script=_SCRIPT.format(text=text),
    )


def text_of(data: bytes) -> msgspec.Raw:
    """Return bytes as a MessagePack text: the decoder inside Redis does not know the type of bytes."""
    size = len(data)
    if size < 32:
        head = bytes((0xA0 | size,))
    elif size < 1 << 8:
        head = bytes((0xD9, size))
    elif size < 1 << 16:
        head = b"\xda" + size.to_bytes(2, "big")
    else:
        head = b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + data)


def _in_order(shared: Mapping[str, str]) -> Iterable[str]:
    """Return the names of the shared files, each after those that it uses; otherwise in the order of the alphabet."""
    uses = {name: _USES.findall(text) for name, text in sorted(shared.items())}
    return TopologicalSorter(
        {name: [used.strip() for line in lines for used in line.split(",")] for name, lines in uses.items()}
    ).static_order()


def _block(verb: str, text: str) -> str:
    batch = re.search(rf"^local function {verb}_batch\b", text, re.MULTILINE) is not None
    register, function = ("register_batch", f"{verb}_batch") if batch else ("register", verb)
    flag = "'no-writes'" if _READS_ONLY.search(text) else "'allow-oom'" if _DELETES.search(text) else "nil"
    return f"do\n{text}\n{register}('{verb}_{_PLACE}', {function}, {flag})\nend"
