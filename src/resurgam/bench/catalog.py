"""The workloads by name, and the expectations for each."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from resurgam.bench import endless, flows, http, idle, recovery, several, startup, workloads
from resurgam.bench.figures import Figures
from resurgam.bench.scene import Scene

WORKLOADS: Final[Mapping[str, Callable[[Scene], Coroutine[None, None, list[Figures]]]]] = {
    "W1": workloads.sequential,
    "W2": workloads.concurrent,
    "W3": workloads.single,
    "W4": workloads.fan_out,
    "W5": workloads.reaction,
    "W6": recovery.recovery,
    "W7": workloads.sleepers,
    "W8": endless.endless,
    "W9": idle.idle,
    "W10": several.several,
    "W11": recovery.recovery_of_many,
    "W12": startup.startup,
    "W13": flows.flows,
    "W14": http.http,
}


class Expectation(NamedTuple):
    """An expectation for a workload: *measure* returns the number, None if it does not apply, in *unit*."""

    workload: str
    text: str
    measure: Callable[[Figures], float | None]
    unit: str
    least: float | None = None
    most: float | None = None

    def met(self, measured: float) -> bool:
        """Whether a number is within the bounds."""
        return (self.least is None or measured >= self.least) and (self.most is None or measured <= self.most)


class Verdict(NamedTuple):
    """An expectation and the measured number; *met* is None if it does not apply."""

    workload: str
    text: str
    measured: float | None
    unit: str
    met: bool | None


def _of_raw_rate(figures: Figures) -> float | None:
    raw = figures.raw
    return None if raw is None or raw.rate is None or figures.rate is None else figures.rate / raw.rate


def _raw_commits(figures: Figures) -> float | None:
    return None if figures.raw is None else figures.p50 / figures.raw.p50


def _rounded_commits(figures: Figures) -> float | None:
    return None if figures.commits is None else round(figures.commits, 2)


def _to_workflow(figures: Figures) -> float | None:
    ratio = figures.more.get("to_workflows")
    return None if ratio is None else 1 / ratio


def _longest_recovery(figures: Figures) -> float | None:
    return figures.p50 if figures.more.get("length", 0) >= 10_000 else None


def _slower(figures: Figures) -> float | None:
    return figures.more.get("last_to_first")


def _active(figures: Figures) -> float | None:
    return figures.more.get("active_entries")


def _cold_objects(figures: Figures) -> float | None:
    """Count objects, not bytes: SQLite's own page cache fills up meanwhile."""
    return figures.more.get("objects_per_cold_sleeper")


def _idle_engine(figures: Figures) -> float | None:
    return figures.more.get("percent_of_a_core") if figures.more.get("processes") == 1 else None


def _idle_processes(figures: Figures) -> float | None:
    return figures.more.get("percent_of_a_core") if figures.more.get("processes", 0) > 1 else None


def _second_process(figures: Figures) -> float | None:
    return figures.more.get("to_one_process") if figures.more.get("cores", 0) > 1 else None


def _start_of(figures: Figures, *, command: bool) -> float | None:
    return figures.p50 * 1000 if figures.more.get("command") == command else None


def _of_empty_posts(figures: Figures) -> float | None:
    return figures.more.get("to_empty_posts")


def _streams(figures: Figures) -> float | None:
    return figures.more.get("streams")


def _http_steps(figures: Figures) -> float | None:
    return figures.rate if "to_calls" in figures.more else None


EXPECTATIONS: Final = (
    Expectation("W1", "at least half of the raw limit", _of_raw_rate, "of it", least=0.5),
    Expectation("W1", "1.0 commits a step", _rounded_commits, "commits", most=1.0),
    Expectation("W2", "at least 15,000 steps/s", lambda f: f.rate, "steps/s", least=15_000),
    Expectation("W3", "p50 within 6 raw commits", _raw_commits, "raw commits", most=6),
    Expectation("W4", "at least 20,000 steps/s", lambda f: f.rate, "steps/s", least=20_000),
    Expectation("W5", "p50 within 1.5 ms", lambda f: f.p50 * 1000, "ms", most=1.5),
    Expectation("W6", "10,000 recovered within 0.5 s", _longest_recovery, "s", most=0.5),
    Expectation("W7", "all started within 2 s", lambda f: f.p50, "s", most=2.0),
    Expectation("W7", "no object for a sleeper that is not cached", _cold_objects, "objects", most=0.1),
    Expectation("W8", "the last thousand iterations within 20 % of the first", _slower, "of the first", most=1.2),
    Expectation("W8", "no entry of a past iteration is read again", _active, "entries", most=50),
    Expectation("W9", "under 0.5 % of a core for an idle engine", _idle_engine, "%", most=0.5),
    Expectation("W9", "under 5 % of a core for twenty idle processes", _idle_processes, "%", most=5),
    Expectation("W10", "two processes at least 1.5 times as fast as one", _second_process, "times", least=1.5),
    Expectation("W11", "1,000 runs of 100 events resumed within 3 s", lambda f: f.p50, "s", most=3),
    Expectation("W12", "import resurgam under 120 ms", lambda f: _start_of(f, command=False), "ms", most=120),
    Expectation("W12", "resurgam --help under 200 ms", lambda f: _start_of(f, command=True), "ms", most=200),
    Expectation(
        "W13", "a step of a flow at most 1.5 times as long as one of a workflow", _to_workflow, "times", most=1.5
    ),
    Expectation("W14", "starts at least 0.6 of empty POSTs", _of_empty_posts, "of them", least=0.6),
    Expectation("W14", "every event on 1,000 streams", _streams, "streams", least=1000),
    Expectation("W14", "at least 769 HTTP steps/s", _http_steps, "steps/s", least=769),
)


def _rounded_round_trips(figures: Figures) -> float | None:
    return None if figures.round_trips is None else round(figures.round_trips, 2)


def _of_calls(figures: Figures) -> float | None:
    rate = figures.more.get("rate_of_calls")
    return None if rate is None or figures.rate is None else figures.rate / rate


def _rate_to_sqlite(figures: Figures) -> float | None:
    return figures.more.get("rate_to_sqlite")


def _time_to_sqlite(figures: Figures) -> float | None:
    return figures.more.get("p50_to_sqlite")


def _longest_to_sqlite(figures: Figures) -> float | None:
    return None if _longest_recovery(figures) is None else _time_to_sqlite(figures)


def _kept_beside(figures: Figures, workload: str) -> float | None:
    return figures.more.get("kept") if f"of_{workload}" in figures.more else None


SERVER_EXPECTATIONS: Final = (
    Expectation("W1", "1.0 round trips a step", _rounded_round_trips, "round trips", most=1.0),
    Expectation("W1", "at least 0.35 of the raw limit", _of_raw_rate, "of it", least=0.35),
    Expectation(
        "W1", "at least 0.35 of the same calls through the store's connection", _of_calls, "of them", least=0.35
    ),
    Expectation("W2", "at most 0.15 round trips a step", _rounded_round_trips, "round trips", most=0.15),
    Expectation("W2", "at least 0.8 of SQLite's rate", _rate_to_sqlite, "of it", least=0.8),
    Expectation("W3", "p50 within 1.2 of SQLite's", _time_to_sqlite, "of it", most=1.2),
    Expectation("W5", "p50 within 1.2 of SQLite's", _time_to_sqlite, "of it", most=1.2),
    Expectation("W6", "10,000 recovered within 1.3 of SQLite's time", _longest_to_sqlite, "of it", most=1.3),
    Expectation("W7", "no object for a sleeper that is not cached", _cold_objects, "objects", most=0.1),
    Expectation("W8", "the last thousand iterations within 20 % of the first", _slower, "of the first", most=1.2),
    Expectation("W8", "no entry of a past iteration is read again", _active, "entries", most=50),
    Expectation("W9", "W1 keeps 80 %", lambda f: _kept_beside(f, "W1"), "of its rate", least=0.8),
    Expectation("W9", "W2 keeps 80 %", lambda f: _kept_beside(f, "W2"), "of its rate", least=0.8),
)
"""The expectations for a Redis store on a server on the same machine."""

POSTGRES_EXPECTATIONS: Final = (
    Expectation("W1", "1.0 round trips a step", _rounded_round_trips, "round trips", most=1.0),
    Expectation("W2", "at most 0.1 round trips a step", _rounded_round_trips, "round trips", most=0.1),
    *(one for one in SERVER_EXPECTATIONS if one.workload in ("W7", "W8", "W9")),
    Expectation("W10", "two processes at least 1.25 times as fast as one", _second_process, "times", least=1.25),
)
"""Those for a Postgres store. It is compared with another engine on the same server, not with SQLite."""

COMPARED: Final = ("W2", "W3", "W5", "W6")
"""The workloads in which a Redis store is compared with SQLite in the same run."""


def compared(measured: Sequence[Figures], beside: Sequence[Figures]) -> list[Figures]:
    """Return figures with their ratios to those of the same workload on SQLite."""
    return [replace(one, more=one.more | _ratios(one, other)) for one, other in zip(measured, beside, strict=True)]


def _ratios(one: Figures, other: Figures) -> dict[str, float]:
    ratios = {"p50_to_sqlite": one.p50 / other.p50}
    if one.rate is not None and other.rate is not None:
        ratios["rate_to_sqlite"] = one.rate / other.rate
    return ratios


def verdicts(
    measured: Sequence[Figures], *, scale: float = 1.0, expectations: Sequence[Expectation] = EXPECTATIONS
) -> list[Verdict]:
    """Return the verdict on each expectation of the measured workloads; they apply at full size only."""
    found = []
    for expectation in expectations:
        numbers = [expectation.measure(figures) for figures in measured if figures.workload == expectation.workload]
        if not numbers:
            continue
        number = next((number for number in numbers if number is not None), None)
        met = None if number is None or scale != 1 else expectation.met(number)
        found.append(Verdict(expectation.workload, expectation.text, number, expectation.unit, met))
    return found
