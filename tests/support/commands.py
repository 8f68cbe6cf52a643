"""All commands of the program, those of its groups by two words."""

from collections.abc import Iterator

import click

from resurgam.cli.main import ListedCommand, main


def commands() -> Iterator[str]:
    for name, listed in main.commands.items():
        assert isinstance(listed, ListedCommand)
        loaded = listed.load()
        if isinstance(loaded, click.Group):
            yield from (f"{name} {inner}" for inner in loaded.commands)
        else:
            yield name
