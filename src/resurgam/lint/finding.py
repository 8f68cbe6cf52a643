"""What is found, and how it reads."""

from dataclasses import dataclass

from resurgam.runtime.loop.forbidden import Rule


@dataclass(frozen=True, slots=True)
class Step:
    """One call on the way from a workflow to a finding: *function* was called by *caller* at *line*."""

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
    def way(self) -> str:
        """How the workflow gets there, innermost call first; nothing if it is in the workflow itself."""
        if not self.steps:
            return ""
        calls = [f"called from {step.caller} at line {step.line}" for step in reversed(self.steps)]
        return f"in {self.steps[-1].function}, {', '.join(calls)}"

    @property
    def message(self) -> str:
        """What is wrong, and why."""
        way = f" ({self.way})" if self.steps else ""
        return f"{self.what} in workflow {self.workflow}{way}: {self.rule.reason}"

    def __str__(self) -> str:
        rule = f"{self.rule.code} {self.rule.word}"
        return f"{self.file}:{self.line}:{self.column}: {rule}: {self.message}; {self.rule.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one module, and how many workflows it has."""

    findings: tuple[Finding, ...]
    workflows: int
