"""The group of commands, and the one place where an error becomes a line and an exit code."""

import importlib
import sys
import traceback
from typing import Any

import click

from resurgam.cli import commands, control, retention
from resurgam.cli.bench import bench
from resurgam.cli.check import check_command
from resurgam.cli.lint import lint
from resurgam.cli.output import one_line, unwritable
from resurgam.cli.worker import worker
from resurgam.errors import ResurgamError


class Refusal(click.ClickException):
    """A command line that cannot be understood: one line, and exit code 2."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C: one line, and the exit code that shells give it."""

    exit_code = 130


class Group(click.Group):
    """Commands whose errors are one line each on stderr: exit code 2 for usage, 1 for a failure."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the whole; an output that cannot be written is one line, too, and a closed pipe is none."""
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if all(frame.f_code is not click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
                raise  # it was not about the output
            unwritable(error)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            path = ctx.command_path if error.ctx is None else error.ctx.command_path
            raise Refusal(one_line(f"{error.format_message().rstrip('.')} (see {path} --help)")) from error
        except ResurgamError as error:
            raise click.ClickException(one_line(str(error))) from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="resurgam", message="%(prog)s %(version)s")
def main() -> None:
    """Durable workflows: run workers, start workflows, and see what became of them.

    \b
    Example: resurgam list --store sqlite:///shop.db
    """  # noqa: D301 -- \b is the sign by which click leaves a paragraph as it stands


@main.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True}, short_help="Watch workflows survive."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def demo(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Hand everything to the demonstration, which is imported only now."""
    command: click.Command = importlib.import_module("resurgam.cli.demo").demo_command
    with command.make_context(context.info_name, list(arguments), parent=context.parent) as inner:
        command.invoke(inner)


for command in (
    worker,
    check_command,
    lint,
    bench,
    commands.start,
    commands.list_,
    commands.show,
    commands.history,
    control.signal,
    control.query,
    control.update,
    control.resolve,
    control.reject,
    control.cancel,
    control.terminate,
    control.pause,
    control.resume,
    control.begin,
    control.retry,
    commands.export,
    commands.import_,
    retention.purge_command,
    retention.vacuum_command,
):
    main.add_command(command)
