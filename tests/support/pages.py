"""The pages of the documentation, taken apart: files, commands and programs that the suite runs.

- A Python or JavaScript block whose first line is a comment with a file name is a *file*: written to the folder of the page.
- An indented line that begins with ``$`` is a *command*; the indented lines below it are what it prints, where ``...``
  stands for anything. One that ends with ``&`` runs until the end of the page. It may begin with variables of its
  environment (``NAME=value``) and write what it prints to a file (``> name``).
- A Python block that defines ``example(env)`` or ``example(store)`` is a *program* of its own.
- A JSON block below a line with its file name is a *definition*, written as a file.
- An indented line that begins with ``resurgam`` is shown only; its options are checked.

Everything else between fences is text that a page has to mark as such.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FILE = r"```(?:python|javascript)\n(?P<comment>#|//) (?P<file>\S+\.(?:py|mjs))\n(?P<content>(?:.*\n)*?)```"
_COMMAND = r"^    \$ (?P<command>.+)\n(?P<printed>(?:(?:    (?!\$ ).*)?\n)*)"
_DEFINITION = r"`(?P<name>\S+\.json)`:\n\n```json\n(?P<json>(?:.*\n)*?)```"
_STEPS = re.compile(f"{_FILE}|{_COMMAND}|{_DEFINITION}", re.MULTILINE)
_PROGRAM = re.compile(r"```python\n((?!# \S+\.py\n)(?:.*\n)*?)```")
_FENCE = re.compile(r"^ *```(\w*)", re.MULTILINE)
_PORT = re.compile(r"\b808[01]\b")
_SHOWN = re.compile(r"^    ((?:[A-Z_]+=\S+ )*resurgam (?:.*\\\n)*.*)$", re.MULTILINE)


class File(NamedTuple):
    """A file that a page shows."""

    name: str
    content: str


class Command(NamedTuple):
    """A command of a page, and what it prints."""

    line: str
    printed: str


class Page:
    """One page, by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(DOCS).with_suffix("").as_posix()
        self.text = path.read_text()

    def steps(self, text: str | None = None) -> Iterator[File | Command]:
        """Yield files and commands in the order of the page; *text* is the page with some words replaced."""
        for found in _STEPS.finditer(self.text if text is None else text):
            if found["file"]:
                yield File(found["file"], f"{found['comment']} {found['file']}\n{found['content']}")
            elif found["name"]:
                yield File(found["name"], found["json"])
            else:
                yield Command(found["command"], found["printed"])

    def text_with(self, free_port: Callable[[], int]) -> str:
        """Return the page with the ports 8080 and 8081 replaced by free ones."""
        ports = {port: str(free_port()) for port in sorted(set(_PORT.findall(self.text)))}
        return _PORT.sub(lambda found: ports[found[0]], self.text)

    @property
    def programs(self) -> list[str]:
        """The blocks that are programs of their own."""
        return _PROGRAM.findall(self.text)

    @property
    def shown(self) -> list[list[str]]:
        """The arguments of `resurgam` in lines that are only shown."""
        return [_arguments(line) for line in _SHOWN.findall(self.text)]

    @property
    def unknown(self) -> list[str]:
        """The languages of blocks that nothing runs; a block of text has none."""
        fences = _FENCE.findall(self.text)[::2]
        known = len([one for one in self.steps() if isinstance(one, File)]) + len(self.programs)
        code = [language for language in fences if language not in {"", "text"}]
        return [] if len(code) == known else code


def _arguments(line: str) -> list[str]:
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    words = words[words.index("resurgam") + 1 :]
    ends = [number for number, word in enumerate(words) if word in {">", "|", "&"}]
    return words[: ends[0]] if ends else words


def pages() -> list[Page]:
    """Return all pages of the site."""
    return [Page(path) for path in sorted(DOCS.rglob("*.md"))]


def page(name: str) -> Page:
    """Return a page by its path below ``docs``, without the ending."""
    return Page(DOCS / f"{name}.md")


def collapsed(text: str) -> str:
    """Return a text with its whitespace collapsed."""
    return " ".join(text.split())


def pattern(printed: str) -> str:
    """Return the pattern of what a command prints."""
    return ".*".join(map(re.escape, collapsed(printed).split("...")))
