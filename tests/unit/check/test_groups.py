"""Runs with the same finding are one group, in whatever order processes tell of them."""

from resurgam.check.examined import Detail, Examined, Outcome, Run
from resurgam.check.groups import TRIED, Report
from resurgam.check.text import lines, summary
from resurgam.core.edit import Insert
from resurgam.core.location import ROOT

EDIT = Insert(scope=ROOT, call=0, version=2, verb="activity", name="a", source="f.py:1")


def diverging(number: int, *, shape: str = "s", detail: Detail | None = None) -> Examined:
    run = Run(f"o-{number}", f"e-{number}", "w")
    fields = {"key": ("w", "k"), "shape": shape, "remedy": (EDIT,), "detail": detail}
    return Examined(run=run, outcome=Outcome.DIVERGES, python="3.11", **fields)


def test_the_detail_may_come_with_a_later_run():
    report = Report()
    report.add(diverging(1))
    report.add(diverging(2, detail=Detail(message="where they part")))

    [group] = report.of(Outcome.DIVERGES)

    assert [run.entity_id for run in group.runs] == ["o-1", "o-2"]
    assert (group.detail.message, group.shown) == ("where they part", group.runs[1])


def test_a_remedy_is_tried_on_one_history_of_each_shape_up_to_a_number():
    report = Report()
    for number in range(TRIED + 5):
        report.add(diverging(number, shape=str(number), detail=Detail(message="m")))
    report.add(diverging(-1, shape="0"))

    [(edits, runs)] = report.trials()
    report.add_trial(edits, [(run, Outcome.FITS) for run in runs])

    [group] = report.of(Outcome.DIVERGES)
    assert len(runs) == TRIED
    assert (group.remedy, group.untried, group.unhelped) == ((EDIT,), 5, [])
    assert f"          tried: {TRIED + 1:,} of {TRIED + 6:,} fit with it" in list(lines(report, "3.11"))
    assert summary(report) == f"{TRIED + 6:,} runs: 0 fit, {TRIED + 6:,} would diverge (1 finding), 0 undecided"
