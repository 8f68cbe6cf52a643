"""A shop whose code is changed while runs are open, for the tests of ``resurgam check``."""

import asyncio
import json
import sqlite3
from itertools import count
from pathlib import Path
from textwrap import dedent, indent

from click.testing import CliRunner, Result

from resurgam import Context, Registry
from resurgam.cli.main import main
from resurgam.runtime.registry import default_registry
from resurgam.testing import Environment

HEAD = "from resurgam import Context, workflow\n@workflow\nasync def w(ctx: Context, id: str) -> object:\n"
NUMBERS = count()

OLD = """
await ctx.activity("a", id)
await ctx.activity("b", id)
await ctx.listen("go")
"""
INSERTED = OLD.replace('await ctx.activity("b", id)', 'await ctx.activity("c", id)\nawait ctx.activity("b", id)')


class Project:
    """A store with runs of yesterday's workflow ``w``, and files with the code of today."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/shop.db"
        self.registry = Registry()
        for name in "abcde":
            self.registry.activity(name=name)(_echo)

    def record(self, body: str, *ids: str, name: str = "w", **options: str) -> None:
        """Let runs of yesterday's code go as far as they come."""
        code: dict = {"workflow": self.registry.workflow(name=name, **options), "Context": Context}
        exec(HEAD.partition("\n")[2] + indent(body, "    "), code)

        async def run() -> None:
            async with Environment(store=self.url, registry=self.registry) as env:
                for entity_id in ids:
                    await env.start(code["w"], entity_id, id=entity_id)

        asyncio.run(run())

    def write(self, body: str) -> str:
        """Write the code of today, and return its file."""
        file = self.folder / f"checked_{next(NUMBERS)}.py"
        file.write_text(HEAD + indent(dedent(body).strip(), "    ") + "\n")
        return file.name

    def check(self, body: str, *arguments: str) -> Result:
        """Check the code of today, as a process of its own would."""
        default_registry.workflows._known.clear()
        return check(self.write(body), *arguments)

    def document(self, body: str, *arguments: str) -> dict:
        done = self.check(body, "--json", *arguments)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def rows(self) -> list[str]:
        """Return everything that is in the file."""
        connection = sqlite3.connect(self.folder / "shop.db")
        dump = list(connection.iterdump())
        connection.close()
        return dump


async def _echo(id: str) -> str:
    return id


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], prog_name="resurgam")


def last(done: Result) -> str:
    return done.stdout.splitlines()[-1]
