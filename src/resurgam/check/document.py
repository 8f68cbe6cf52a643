"""Write a report as a JSON document, for programs."""

import msgspec

from resurgam.check.examined import Outcome
from resurgam.check.groups import Group, Report
from resurgam.check.text import summary
from resurgam.core.edit import Edit


def document(report: Report, python: str) -> dict[str, object]:
    """Return the whole report, with all ids."""
    counts = report.counts
    return {
        "runs": report.runs,
        "fit": counts[Outcome.FITS],
        "diverge": counts[Outcome.DIVERGES],
        "fail": counts[Outcome.FAILS],
        "unreadable": counts[Outcome.UNREADABLE],
        "undecided": counts[Outcome.UNDECIDED],
        "not_in_module": dict(sorted(report.unknown.items())),
        "python": python,
        "other_pythons": {name: count for name, count in sorted(report.pythons.items()) if name != python},
        "limited": report.limited,
        "notes": [
            {"workflow": workflow, "note": str(note), "held_by": held}
            for workflow, note, held in report.settled_notes()
        ],
        "findings": [_group(group) for group in report.of(*Outcome)],
        "summary": summary(report),
    }


def _group(group: Group) -> dict[str, object]:
    detail = msgspec.to_builtins(group.detail)
    content = {
        "workflow": group.workflow,
        "outcome": group.outcome,
        "runs": len(group.runs),
        "ids": [run.entity_id for run in group.runs],
        **detail,
    }
    if group.outcome is Outcome.DIVERGES:
        content["remedy"] = {
            "edits": [_edit(edit) for edit in group.remedy],
            "fits": len(group.runs) - len(group.unhelped) - group.untried if group.remedy else 0,
            "not_for": [run.entity_id for run in group.unhelped],
            "not_tried": group.untried,
            "harms": [run.entity_id for run in group.harmed],
        }
    return content


def _edit(edit: Edit) -> dict[str, object]:
    fields = {name: value for name in edit.__struct_fields__ if (value := getattr(edit, name)) not in (None, "")}
    return {"edit": type(edit).__name__.lower(), "text": str(edit)} | fields | {"scope": str(edit.scope)}
