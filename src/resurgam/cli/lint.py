"""`resurgam lint`: find non-deterministic calls in workflow code by reading its source."""

import click

from resurgam.cli import output
from resurgam.cli.arguments import check_text, example
from resurgam.cli.text import one_line
from resurgam.lint.check import Unreadable, check
from resurgam.lint.finding import Finding
from resurgam.runtime.loop.forbidden import RULES

_WORDS = ", ".join(rule.word for rule in RULES.values())


@click.command(epilog=example("resurgam lint shop.py billing.flows"))
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True, callback=check_text)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def lint(*, modules: tuple[str, ...], as_json: bool) -> None:
    """Find non-deterministic calls in the workflow code of each MODULE, a dotted name or the path of a .py file.

    It reads workflows, the functions of the module that they call, branches, handlers and bodies of loops; not
    activities, nor functions passed to ctx.run. Nothing is imported. With findings the exit code is 1.

    To allow a call, add a comment to its line: # resurgam: allow clock. The words are WORDS, or the code of a finding.
    With RESURGAM_DEV=1 the same calls are refused while workflows run.
    """
    try:
        reports = [check(module) for module in dict.fromkeys(modules)]
    except Unreadable as error:
        raise click.BadParameter(str(error), param_hint="MODULE") from error
    findings = [finding for report in reports for finding in report.findings]
    workflows = sum(report.workflows for report in reports)
    if as_json:
        output.document({"findings": [_fields(finding) for finding in findings], "workflows": workflows})
    else:
        for finding in findings:
            click.echo(one_line(str(finding)))
        found = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "no findings"
        click.echo(f"{found} in {workflows} workflow{'s' * (workflows != 1)}")
    if findings:
        click.get_current_context().exit(1)


lint.help = (lint.help or "").replace("WORDS", _WORDS)


def _fields(finding: Finding) -> dict[str, object]:
    steps = [{"function": step.function, "caller": step.caller, "line": step.line} for step in finding.steps]
    return {
        "code": finding.rule.code,
        "rule": finding.rule.word,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "workflow": finding.workflow,
        "path": steps,
        "message": finding.message,
        "remedy": finding.rule.remedy,
    }
