"""`resurgam check`: would the open runs of a store go on with the code on disk? Asked before it is deployed."""

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator

import click

from resurgam.check.check import Plan, Tell, check
from resurgam.check.document import document
from resurgam.check.text import lines
from resurgam.cli import output
from resurgam.cli.arguments import check_file, example, text, with_store
from resurgam.cli.worker import load
from resurgam.errors import ResurgamError
from resurgam.runtime.definitions.registry import default_registry


@click.command(
    "check",
    short_help="Replay every open run against the code of MODULE.",
    epilog=example("resurgam check shop.py --store sqlite:///shop.db"),
)
@click.argument("module", callback=text)
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=lambda: os.cpu_count() or 1, help="How many to use; all cores."
)
@click.option("--limit", type=click.IntRange(1), help="Only so many runs, the newest.")
@with_store
def check_command(*, store: str, as_json: bool, module: str, processes: int, limit: int | None) -> None:
    """Replay every open run against the code of MODULE, a dotted name or the path of a .py file.

    Nothing is written and nothing is run but workflow code; workers may serve the store meanwhile. Runs for which the
    same is found are told of together: where code and history part, the line, and an edit with which they fit.

    The exit code is 1 if some would diverge or fail, 2 if it could not be found out, else 0: also if runs are
    undecided, or are of workflows that MODULE does not have (one that was renamed, say). They are counted and named.
    """
    with _refusals():
        check_file(store)
        with contextlib.redirect_stdout(sys.stderr):  # what an import prints is not our answer
            load(module)
        if not any(default_registry.workflows):
            raise click.BadParameter(
                f"{module} registers no workflow, so there is nothing to check", param_hint="MODULE"
            )
        plan = Plan(url=store, module=module, load=load, processes=processes, limit=limit)
        with _progress() as tell:
            report = check(plan, tell)
    python = ".".join(platform.python_version_tuple()[:2])
    if as_json:
        output.document(document(report, python))
    else:
        for line in lines(report, python):
            click.echo(output.visible(line))
    click.get_current_context().exit(int(report.bad))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Whatever keeps it from being found out has exit code 2: 1 is an answer."""
    try:
        yield
    except ResurgamError as error:
        raise click.UsageError(output.one_line(str(error))) from error
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise click.UsageError(error.format_message()) from error


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """Show how far it is, on the standard error: a bar on a terminal, elsewhere some lines if it takes long."""
    if not sys.stderr.isatty():
        yield _in_tenths()
        return
    with click.progressbar(length=0, label="replaying", file=sys.stderr, show_pos=True) as bar:

        def tell(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield tell


def _in_tenths() -> Callable[[int, int], None]:
    said = 0

    def tell(done: int, total: int) -> None:
        nonlocal said
        tenth = done * 10 // max(total, 1)
        if total >= 1000 and tenth > said and done < total:
            said = tenth
            click.echo(f"{done:,} of {total:,} runs replayed", err=True)

    return tell
