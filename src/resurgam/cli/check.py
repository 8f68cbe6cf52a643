"""`resurgam check`: before a deployment, check whether the open runs of a store fit the code on disk."""

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator

import click

from resurgam.check.check import Plan, Progress, check
from resurgam.check.document import document
from resurgam.check.text import lines
from resurgam.cli import output
from resurgam.cli.arguments import check_file, check_text, example, with_store
from resurgam.cli.module import load_module
from resurgam.cli.text import one_line, visible
from resurgam.errors import ResurgamError
from resurgam.runtime.registry import default_registry


@click.command(
    "check",
    epilog=example("resurgam check shop.py --store sqlite:///shop.db"),
)
@click.argument("module", callback=check_text)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=lambda: os.cpu_count() or 1,
    help="The number of processes; one per core by default.",
)
@click.option("--limit", type=click.IntRange(1), help="Check only this many runs, the newest.")
@with_store
def check_command(*, store: str, as_json: bool, module: str, processes: int, limit: int | None) -> None:
    """Replay all open runs against the code of MODULE, a dotted name or the path of a .py file.

    Only workflow code is run, and nothing is written; workers may serve the store meanwhile. Runs with the same finding
    are reported together: the location, the line of code, and an edit with which code and history fit again.

    The exit code is 1 if some runs would diverge or fail, 2 if the check itself fails, else 0. Undecided runs, and runs
    of workflows that MODULE does not have (such as a renamed one), are counted and named, and do not change it.
    """
    with _usage_errors():
        check_file(store)
        with contextlib.redirect_stdout(sys.stderr):  # output of the import is not output of this command
            load_module(module)
        if not any(default_registry.workflows):
            raise click.BadParameter(
                f"{module} registers no workflow, so there is nothing to check", param_hint="MODULE"
            )
        plan = Plan(url=store, module=module, load=load_module, processes=processes, limit=limit)
        with _progress() as progress:
            report = check(plan, progress)
    python = ".".join(platform.python_version_tuple()[:2])
    if as_json:
        output.document(document(report, python))
    else:
        for line in lines(report, python):
            click.echo(visible(line))
    click.get_current_context().exit(int(report.bad))


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn every error into one with exit code 2; exit code 1 is a finding."""
    try:
        yield
    except ResurgamError as error:
        raise click.UsageError(one_line(str(error))) from error
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise click.UsageError(error.format_message()) from error


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Show the progress on the standard error: a bar on a terminal, otherwise a line per tenth of a long check."""
    if not sys.stderr.isatty():
        yield _in_tenths()
        return
    with click.progressbar(length=0, label="replaying", file=sys.stderr, show_pos=True) as bar:

        def update(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield update


def _in_tenths() -> Callable[[int, int], None]:
    printed = 0

    def update(done: int, total: int) -> None:
        nonlocal printed
        tenth = done * 10 // max(total, 1)
        if total >= 1000 and tenth > printed and done < total:
            printed = tenth
            click.echo(f"{done:,} of {total:,} runs replayed", err=True)

    return update
