"""The command group, and the one place where an error becomes a line and an exit code."""

import importlib
import sys
import traceback
from typing import Any

import click

from resurgam.cli import control, inspection, messages, retention, transfer
from resurgam.cli.bench import bench
from resurgam.cli.check import check_command
from resurgam.cli.lint import lint
from resurgam.cli.output import one_line, report_unwritable
from resurgam.cli.start import start
from resurgam.cli.worker import worker
from resurgam.errors import ResurgamError


class UsageRefused(click.ClickException):
    """A command line that cannot be parsed: one line, and exit code 2."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C: one line, and the exit code of shells for SIGINT."""

    exit_code = 130


class Group(click.Group):
    """A command group whose errors are one line each on stderr: exit code 2 for usage, 1 for a failure."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program; an output that cannot be written is a one-line error, a closed pipe is none."""
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if all(frame.f_code is not click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
                raise  # not an error of the output
            report_unwritable(error)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn its errors into one line."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            path = ctx.command_path if error.ctx is None else error.ctx.command_path
            raise UsageRefused(one_line(f"{error.format_message().rstrip('.')} (see {path} --help)")) from error
        except ResurgamError as error:
            raise click.ClickException(one_line(str(error))) from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="resurgam", message="%(prog)s %(version)s")
def main() -> None:
    """Durable workflows: run workers, start workflows, inspect and control them.

    \b
    Example: resurgam list --store sqlite:///shop.db
    """  # noqa: D301 -- \b tells click not to wrap a paragraph


@main.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Watch a workflow survive kills of its worker.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def demo(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the demo, whose module is imported only now."""
    command: click.Command = importlib.import_module("resurgam.cli.demo").demo_command
    with command.make_context(context.info_name, list(arguments), parent=context.parent) as inner:
        command.invoke(inner)


for command in (
    worker,
    check_command,
    lint,
    bench,
    start,
    inspection.list_,
    inspection.show,
    inspection.history,
    messages.signal,
    messages.query,
    messages.update,
    messages.resolve,
    messages.reject,
    control.cancel,
    control.terminate,
    control.pause,
    control.resume,
    control.begin,
    control.retry,
    transfer.export,
    transfer.import_,
    retention.purge_command,
    retention.vacuum_command,
):
    main.add_command(command)
