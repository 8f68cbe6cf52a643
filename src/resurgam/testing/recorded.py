"""Check that the code still fits histories that were exported into the repository.

::

    from resurgam.testing import recorded_histories

    recorded = recorded_histories(Path(__file__).parent / "histories")

    def test_the_code_fits_recorded_histories(recorded):
        recorded.check(checkout)
"""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resurgam.check.examined import Outcome, Run
from resurgam.check.examiner import Examiner
from resurgam.check.groups import Report
from resurgam.check.text import lines
from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory, NotFound
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.state import ENDS
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.replay import parse

_SUFFIXES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A file written by ``resurgam export`` or ``resurgam history --json``; of several executions the last counts."""

    file: Path

    def __str__(self) -> str:
        return self.file.stem

    @property
    def history(self) -> list[events.Event]:
        """The events of the file."""
        try:
            return parse(self.file.read_text("utf-8"))
        except ValueError as error:
            raise CorruptHistory(f"{self.file}: {error}") from error

    def check(self, workflow: Workflow[..., Any] | None = None, *, registry: Registry = default_registry) -> Outcome:
        """Raise `AssertionError` with the report of ``resurgam check`` unless the code fits; return the outcome.

        *workflow* is by default the one of the same name in *registry*. A closed run is checked as it was before its
        end: code with additional steps would go on beyond it.
        """
        whole = self.history
        ended = next((index for index, entry in enumerate(whole) if type(entry) in ENDS), None)
        history = whole[:ended]
        if not history or not isinstance(history[0], events.WorkflowStarted):
            raise CorruptHistory(f"{self.file}: a history begins with workflow_started; this one does not")
        started = history[0]
        if started.kind != WORKFLOW:
            raise ValueError(f"{self.file}: must be the history of a workflow, got kind {started.kind!r}")
        code = registry.workflows.find(started.name) if workflow is None else workflow
        examiner = Examiner({started.name: code}.get)
        # Where the end of the history is cut off, an exception of the code may be the recorded outcome.
        cut = ended is not None or isinstance(history[-1], events.WorkflowDiverged)
        run = Run(started.entity_id or self.file.stem, started.execution_id, started.name, cut)
        examined = examiner.examine(run, history)
        report = Report()
        report.add(examined)
        for edits, runs in report.trials():
            report.add_trial(edits, [(tried, examiner.try_edits(tried, history, edits)) for tried in runs])
        python = ".".join(platform.python_version_tuple()[:2])
        assert not report.bad, "\n".join((f"{self.file}:", *lines(report, python)))
        return examined.outcome


def histories(folder: str | Path) -> list[Recorded]:
    """Return the recorded histories of a folder, by name; there must be some."""
    files = sorted(file for file in Path(folder).glob("*") if file.suffix in _SUFFIXES)
    if not files:
        raise NotFound(
            f"there are no recorded histories (*.jsonl) in {Path(folder).absolute()}; "
            "write some with resurgam export ID --output FILE"
        )
    return [Recorded(file) for file in files]


def recorded_histories(folder: str | Path) -> Any:
    """Return a pytest fixture with each recorded history of a folder, as a `Recorded`."""
    import pytest  # noqa: PLC0415 -- an optional dependency

    @pytest.fixture(params=histories(folder), ids=str)
    def recorded(request: pytest.FixtureRequest) -> Recorded:
        found: Recorded = request.param
        return found

    return recorded
