"""Findings of the linter and their text."""

from dataclasses import dataclass

from resurgam.runtime.loop.forbidden import Rule


@dataclass(frozen=True, slots=True)
class Step:
    """One call on the path from a workflow to a finding: *caller* calls *function* at *line*."""

    function: str
    caller: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in workflow code that breaks a rule."""

    rule: Rule
    file: str
    line: int
    column: int
    what: str
    workflow: str
    steps: tuple[Step, ...] = ()

    @property
    def path(self) -> str:
        """The calls that lead to the finding, innermost first; empty if it is in the workflow itself."""
        if not self.steps:
            return ""
        calls = [f"called from {step.caller} at line {step.line}" for step in reversed(self.steps)]
        return f"in {self.steps[-1].function}, {', '.join(calls)}"

    @property
    def message(self) -> str:
        """The call that is forbidden, where it is, and why."""
        path = f" ({self.path})" if self.steps else ""
        return f"{self.what} in workflow {self.workflow}{path}: {self.rule.reason}"

    def __str__(self) -> str:
        rule = f"{self.rule.code} {self.rule.word}"
        return f"{self.file}:{self.line}:{self.column}: {rule}: {self.message}; {self.rule.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one module, and its number of workflows."""

    findings: tuple[Finding, ...]
    workflows: int
