"""What every command prints an error with: text that fits one line, and a report about the output itself."""

import os
import sys
from contextlib import suppress

import click


def one_line(text: str) -> str:
    """Return a text as one line of printable characters."""
    return visible(" ".join(filter(None, map(str.strip, text.splitlines()))))


def visible(line: str) -> str:
    """Return a line with unprintable characters escaped, and its spaces unchanged."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def report_unwritable(error: OSError) -> None:
    """Report that the standard output cannot be written, and discard further output."""
    with suppress(OSError, ValueError):  # flushing the rest of the buffer at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        click.echo(f"Error: the output cannot be written: {error.strerror}; redirect it elsewhere", err=True)
