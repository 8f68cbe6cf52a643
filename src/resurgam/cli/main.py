"""The command group, and the one place where an error becomes a line and an exit code."""

import sys
import traceback
from importlib import import_module
from typing import Any

import click

import resurgam
from resurgam.cli.text import one_line, report_unwritable


class UsageRefused(click.ClickException):
    """A command line that cannot be parsed: one line, and exit code 2."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C: one line, and the exit code of shells for SIGINT."""

    exit_code = 130


class ListedCommand(click.Command):
    """A command of which the group has the name and the help line; its module is imported when it is called."""

    def __init__(self, name: str, function: str, line: str) -> None:
        super().__init__(name, short_help=line)
        self._module, _, self._function = function.rpartition(".")

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = getattr(import_module(f"resurgam.cli.{self._module}"), self._function)
        return command


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; it is imported only now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, ListedCommand) else command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn its errors into one line."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            path = ctx.command_path if error.ctx is None else error.ctx.command_path
            raise UsageRefused(one_line(f"{error.format_message().rstrip('.')} (see {path} --help)")) from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error
        except resurgam.errors.ResurgamError as error:  # imported only once there is an error
            raise click.ClickException(one_line(str(error))) from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="resurgam", message="%(prog)s %(version)s")
def main() -> None:
    """Durable workflows: run workers, start workflows, inspect and control them.

    \b
    Example: resurgam list --store sqlite:///shop.db
    """  # noqa: D301 -- \b tells click not to wrap a paragraph


for listed in (
    ListedCommand("worker", "worker.worker", "Run a worker with the code of a module."),
    ListedCommand("serve", "serve.serve", "Serve the HTTP API, with a worker inside."),
    ListedCommand("keys", "keys.keys", "Create, list and revoke the keys of the HTTP API."),
    ListedCommand("workers", "workers.workers", "List the workers that serve the store, or show what one holds."),
    ListedCommand("dev", "dev.dev", "Start a server for development, and a worker beside it."),
    ListedCommand("check", "check.check_command", "Replay all open runs against the code of a module."),
    ListedCommand("lint", "lint.lint", "Find non-deterministic calls in workflow code."),
    ListedCommand("bench", "bench.bench", "Measure the engine on this machine."),
    ListedCommand("demo", "demo.demo_command", "Watch a workflow survive kills of its worker."),
    ListedCommand("start", "start.start", "Start the workflow NAME."),
    ListedCommand("list", "inspection.list_", "List workflows, newest first."),
    ListedCommand("show", "inspection.show", "Show the status of a workflow."),
    ListedCommand("history", "inspection.history", "Print the history of a workflow."),
    ListedCommand("signal", "messages.signal", "Send a signal to a workflow."),
    ListedCommand("query", "messages.query", "Query a workflow and print the answer."),
    ListedCommand("update", "messages.update", "Send an update to a workflow and print its result."),
    ListedCommand("resolve", "messages.resolve", "Resolve a promise with a value."),
    ListedCommand("reject", "messages.reject", "Reject a promise with a reason."),
    ListedCommand("cancel", "control.cancel", "Cancel a workflow; its code may clean up first."),
    ListedCommand("terminate", "control.terminate", "Terminate a workflow at once, without clean-up."),
    ListedCommand("pause", "control.pause", "Pause a workflow until it is resumed."),
    ListedCommand("resume", "control.resume", "Resume a paused workflow."),
    ListedCommand("begin", "control.begin", "Begin a scheduled workflow now."),
    ListedCommand("retry", "control.retry", "Retry a failed workflow, dead letters or a parked run."),
    ListedCommand("flow", "flow.flow", "Plan, start, show and explain goal flows."),
    ListedCommand("step", "step.step", "Register, update, list and remove the steps of goal flows."),
    ListedCommand("export", "transfer.export", "Export a workflow as JSON lines."),
    ListedCommand("import", "transfer.import_", "Import workflows from the file of an export."),
    ListedCommand("move", "move.move", "Move live workflows to another store."),
    ListedCommand("archive", "archive.archive", "Move closed workflows to an archive."),
    ListedCommand("purge", "retention.purge_command", "Remove closed workflows."),
    ListedCommand("delete", "deletion.delete_command", "Delete everything about one workflow."),
    ListedCommand("deletions", "deletion.deletions_command", "List what was deleted, when, why and by whom."),
    ListedCommand("vacuum", "retention.vacuum_command", "Free the unused pages of a SQLite file."),
):
    main.add_command(listed)
