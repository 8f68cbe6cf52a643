"""`resurgam bench`: measure the engine on this machine, beside the raw limit of its store."""

import sys

import click

from resurgam.cli import output
from resurgam.cli.arguments import example


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    from resurgam.bench.catalog import WORKLOADS  # noqa: PLC0415 -- only this command pays for the import

    names = tuple(WORKLOADS) if value is None else tuple(part.strip().upper() for part in value.split(","))
    for name in names:
        if name not in WORKLOADS:
            message = f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}"
            raise click.BadParameter(message, context, parameter)
    return names


@click.command(epilog=example("resurgam bench --only W1,W4"))
@click.option("--only", "names", metavar="W1,W4", callback=_names, help="Only these workloads, of W1 to W14.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 10, min_open=True),
    default=1.0,
    show_default=True,
    help="The size of the workloads; expectations hold for 1.",
)
@click.option(
    "--store",
    metavar="URL",
    envvar="RESURGAM_STORE",
    show_envvar=True,
    help="Measure in new files beside this one, or on this Redis or Postgres server, under new names; the store "
    "itself is not touched. By default in temporary files on a disk.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def bench(*, names: tuple[str, ...], scale: float, store: str | None, as_json: bool) -> None:
    """Measure the engine on this machine: fourteen workloads, each beside the raw limit of the store.

    The raw limit is measured in the same run: the same rows, committed from one thread without an engine. A Redis store
    is also compared with SQLite.
    """
    from resurgam.bench import table  # noqa: PLC0415 -- as above
    from resurgam.bench.run import run  # noqa: PLC0415 -- as above

    report = run(names, url=store or None, scale=scale, progress=_print_progress)
    if as_json:
        output.document(report)
    else:
        click.echo(table.heading(report))
        click.echo()
        if report.server is None:
            output.table(table.FIGURES, table.figure_rows(report.figures))
        else:
            output.table(table.SERVER_FIGURES, table.server_rows(report))
        click.echo()
        output.table(table.VERDICTS, table.verdict_rows(report.verdicts))
    if report.failed:
        raise click.ClickException("; ".join(f"{name}: {why}" for name, why in report.failed.items()))


def _print_progress(name: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"measuring {name} ...", err=True)
