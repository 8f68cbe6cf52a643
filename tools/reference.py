"""Write the parts of the documentation that come from the code: ``reference.py [--check]``.

These are the diagrams (`diagrams`), the page of the command line and the page of the events. ``--check`` writes nothing and
fails if a file is out of date.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from diagrams import drawings
from resurgam import Context
from resurgam.cli.main import ListedCommand, main
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, CommandKind

ROOT = Path(__file__).parents[1]

_CLI = """\
# Command line

Every command of `resurgam`, with its options. Each takes `--store URL`, or the environment variable `RESURGAM_STORE`, where it
needs a store; prints text for people, and JSON with `--json`; and exits with 0, with 1 and one line on stderr if it fails, or
with 2 if it was called wrongly. `resurgam COMMAND --help` prints the same texts.
"""

_EVENTS = """\
# Events

Every event that a history may contain. `seq` counts the events of an execution from 1, without gaps. `at` is a time in
milliseconds, and `cause` is the event that led to this one, where there is one. A *command* takes a location; an *answer* names its
command by `ref`. `resurgam history ID` prints events as a table, and `resurgam history ID --json` prints them as JSON lines.

[Statuses](../concepts/statuses.md) shows which of them change the status of a run.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, in the order of the help."""
    for name in main.list_commands(click.Context(main)):
        listed = main.commands[name]
        command = listed.load() if isinstance(listed, ListedCommand) else listed
        yield name, command
        if isinstance(command, click.Group):
            yield from (
                (f"{name} {inner}", command.commands[inner]) for inner in command.list_commands(click.Context(command))
            )


def command_line() -> str:
    """Return the page of the command line."""
    parts = [_CLI]
    found = list(commands())
    parts.append(
        "| command | |\n|---|---|\n"
        + "\n".join(f"| [`{name}`](#{_anchor(name)}) | {_line(one)} |" for name, one in found)
    )
    parts.extend(_section(name, command) for name, command in found)
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return f"resurgam-{name.replace(' ', '-')}"


def _line(command: click.Command) -> str:
    return re.split(r"(?<=[.:])\s", " ".join((command.help or "").split()), maxsplit=1)[0].rstrip(":")


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"resurgam {name}")
    usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
    lines = [f"\n## resurgam {name}\n", f"`{usage}`\n", _text(command.help or "")]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        lines += ["\n| option | |\n|---|---|"]
        lines += [_option(one, context) for one in options]
        lines.append("")
    if command.epilog:
        lines.append(f"\n    {command.epilog.replace(chr(8), '').strip().removeprefix('Example: ').strip()}\n")
    return "\n".join(lines)


def _text(help: str) -> str:
    """Return a help text as paragraphs; a preformatted one (after a backspace) as it is."""
    paragraphs = re.split(r"\n\s*\n", help.strip())
    shown = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith("\b"):
            lines = paragraph.replace("\b", "").strip("\n").splitlines()
            shown.append("\n".join(f"    {line.strip()}" for line in lines))
        else:
            shown.append(_escaped(" ".join(paragraph.split())))
    return "\n\n".join(shown) + "\n"


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    names, text = record if record is not None else (", ".join(option.opts), option.help or "")
    # A bar ends the cell even in code.
    return f"| `{names.replace('|', ', ')}` | {_escaped(' '.join(text.split()))} |"


def _escaped(text: str) -> str:
    """Return a text for Markdown; only what would be read as markup is escaped."""
    return re.sub(r"([\[\]|*_])", r"\\\1", text).replace("<", "&lt;")


def events_page() -> str:
    """Return the page of the events: commands with their answers, then all others."""
    kinds = get_args(events.AnyEvent)
    parts = [_EVENTS, "\n## Commands and their answers\n", "| command | type | call | answers |\n|---|---|---|---|"]
    parts += [_command(kind) for kind in COMMANDS.values()]
    for title, belongs in _GROUPS:
        parts += [f"\n## {title}\n", "| event | |\n|---|---|"]
        parts += [f"| `{_tag(one)}` | {_meaning(one)} |" for one in kinds if belongs(one)]
    return "\n".join(parts) + "\n"


def _tag(event: type[Any]) -> str:
    return str(event.__struct_config__.tag)


def _command(kind: CommandKind) -> str:
    answers = " · ".join(f"`{_tag(answer)}`" for answer in kind.answers) or "none"
    call = f"`ctx.{kind.verb}`" if hasattr(Context, kind.verb) else f"`saga.{kind.verb}`"
    return f"| `{kind.tag}` | {kind.type} | {call} | {answers} |"


def _meaning(event: type[Any]) -> str:
    text = " ".join((event.__doc__ or "").split("\n\n")[0].split())
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("|", "\\|")


def _is_flow(event: type[Any]) -> bool:
    return event.__module__.endswith("flow_event")


_GROUPS = (
    ("Lifecycle and messages from outside", lambda one: one.__module__.endswith(("lifecycle", ".entry"))),
    ("Durable calls", lambda one: not _is_flow(one) and not one.__module__.endswith(("lifecycle", ".entry"))),
    ("Goal flows and the catalog", _is_flow),
)


def files() -> dict[str, str]:
    """Return every generated file by its path."""
    return drawings() | {"docs/reference/cli.md": command_line(), "docs/reference/events.md": events_page()}


def run() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    stale = [path for path, text in files().items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    for path in stale:
        if check:
            print(f"{path} is out of date; run: python tools/reference.py")
        else:
            (ROOT / path).write_text(files()[path])
            print(f"wrote {path}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run())
