"""`resurgam demo` as a person runs it: a process of its own, whose workers are killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from resurgam import Engine
from resurgam.cli import demo as demo_module
from resurgam.cli import demo_shop
from resurgam.core import event as events
from resurgam.core.location import Location
from support.limits import HANGS

ROOT = Path(__file__).parents[2]
ACTIVITIES = ("reserve_stock", "charge_card", "pack_parcel 1", "pack_parcel 2", "pack_parcel 3", "send_receipt")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the demo; its temporary files go to *folder*."""
    return subprocess.Popen(
        [sys.executable, "-m", "resurgam.cli.demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder)},
    )


def workers(folder: Path) -> list[int]:
    """Return every worker that any demo in *folder* has ever had, from what they wrote."""
    files = folder.glob("resurgam-demo-*/effects.txt")
    lines = [line.split("\t") for file in files for line in file.read_text().splitlines()]
    return sorted({int(line[1]) for line in lines})


def alive(pid: int) -> bool:
    """Whether a process runs and is no zombie: one whose parent has ended stays that until init looks after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition) -> None:
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("kills", [0, 2])
@pytest.mark.parametrize("seed", [1, 7])
def test_the_order_is_finished_however_often_its_worker_is_killed(tmp_path, seed, kills):
    done = start(tmp_path, "--seed", str(seed), "--kills", str(kills))
    out, err = done.communicate(timeout=HANGS)

    assert (done.returncode, err) == (0, ""), out + err
    assert f"seed        {seed} " in out
    assert len(re.findall(r"KILLED .* worker \d+ by SIGKILL", out)) == kills
    assert f"kills       {kills} of {kills} planned" in out
    assert "each answered exactly once, none twice" in out
    assert re.search(r"history     20 events, seq 1 to 20 without a gap", out)
    assert re.search(r"^look at it  resurgam history order-\w+ --store sqlite:////", out, re.MULTILINE)
    assert "all is well" in out
    database = re.search(r"^database    (.+)$", out, re.MULTILINE)
    assert database is not None
    assert Path(database[1]).exists()
    assert all(name in out for name in ACTIVITIES)
    assert len(workers(tmp_path)) == kills + 1
    assert not any(map(alive, workers(tmp_path)))


def test_without_kills_nothing_runs_twice(tmp_path):
    out, _ = start(tmp_path, "--kills", "0").communicate(timeout=HANGS)

    assert f"ran once    {', '.join(ACTIVITIES)}\n" in out
    assert "ran again   nothing\n" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_leaves_no_process_behind(tmp_path, number):
    demo = start(tmp_path, "--kills", "0")
    wait_for(lambda: workers(tmp_path))
    demo.send_signal(number)
    _, err = demo.communicate(timeout=HANGS)

    assert demo.returncode == 130
    assert err.startswith("stopped; ")
    assert not any(map(alive, workers(tmp_path)))


def test_a_worker_that_is_killed_from_outside_is_replaced(tmp_path):
    demo = start(tmp_path, "--kills", "0")
    wait_for(lambda: workers(tmp_path))
    [victim] = workers(tmp_path)
    os.kill(victim, signal.SIGKILL)
    out, _ = demo.communicate(timeout=HANGS)

    assert demo.returncode == 0
    assert f"worker {victim} by SIGKILL, not by the demo" in out
    assert len(workers(tmp_path)) == 2


def test_a_demo_that_is_killed_takes_its_worker_along(tmp_path):
    demo = start(tmp_path, "--kills", "0")
    wait_for(lambda: workers(tmp_path))
    demo.kill()
    demo.communicate(timeout=HANGS)

    wait_for(lambda: not any(map(alive, workers(tmp_path))))


MOMENTS = [(entries, later) for entries in (1, 3, 5, 9, 13, 17) for later in (0.0, 0.25)]
"""When a worker is killed: so many seconds after so many entries are there. Each step takes 0.3 s, its effect 0.2."""

TOGETHER = 4
"""Orders at a time: with more of them, a slow machine would notice too late how far each one is."""


async def killed_by_hand(folder: Path, entries: int, later: float) -> tuple[demo_shop.Shipped, list[events.Event], int]:
    """Run an order whose worker is killed once; return what came of it, and how far it was when that happened."""
    folder.mkdir()
    async with Engine(f"sqlite:///{folder}/demo.db", registry=demo_shop.registry, worker=False) as engine:
        handle = await engine.start(demo_shop.demo_order, demo_module.ORDER, id="order", queue="order")
        await handle.signal("courier", "Ada")
        keeper = demo_module.WorkerProcess(f"sqlite:///{folder}/demo.db", "order", folder)
        keeper.start()
        try:
            while len(await handle.history()) < entries:
                await asyncio.sleep(0.01)
            await asyncio.sleep(later)
            assert keeper.exit_code is None, keeper.last_log_line()
            keeper.kill()
            reached = len(await handle.history())
            keeper.start()
            result = await handle.result(timeout=HANGS)
        finally:
            keeper.kill()
        history = await handle.history()
    started, done = (
        Counter(step for _, step in demo_shop.read_effects(keeper.effects, kind, "order"))
        for kind in (demo_shop.STARTED, demo_shop.DONE)
    )
    demo_module.check(history, done)
    cut_off = set(ACTIVITIES) - recorded(history[:reached])
    assert {step for step, times in started.items() if times > 1} <= cut_off, "what was recorded ran again"
    assert max(started.values()) <= 2
    return result, history, reached


def recorded(history: list[events.Event]) -> set[str]:
    """Return which steps a history has the result of; they are asked for in the order in which they are listed."""
    asked = [event.seq for event in history if isinstance(event, events.ActivityScheduled)]
    answered = {event.ref for event in history if isinstance(event, events.ActivityCompleted)}
    return {step for step, seq in zip(ACTIVITIES, asked, strict=False) if seq in answered}


async def test_killing_the_worker_by_hand_at_any_moment_never_changes_the_outcome(tmp_path):
    free = asyncio.Semaphore(TOGETHER)

    async def order(entries: int, later: float):
        async with free:
            return await killed_by_hand(tmp_path / f"{entries}-{later}", entries, later)

    ends = await asyncio.gather(*(order(entries, later) for entries, later in MOMENTS))

    asked = [[(e.type, str(e.location), e.name, e.digest) for e in demo_module.commands(end[1])] for end in ends]
    reached = [end[2] for end in ends]
    print(f"killed with so many entries: {reached}")
    assert [end[0] for end in ends] == [demo_shop.expected(demo_module.ORDER, "Ada")] * len(MOMENTS)
    assert asked == [asked[0]] * len(MOMENTS)
    assert [len(end[1]) for end in ends] == [20] * len(MOMENTS)
    assert len(set(reached)) >= 5


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "shop.db"])
def test_a_store_that_cannot_be_shared_is_refused(tmp_path, url):
    demo = start(tmp_path, "--store", url)
    _, err = demo.communicate(timeout=HANGS)

    assert demo.returncode == 2
    assert "two processes share" in err


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path):
    demo = start(tmp_path, "--store", f"sqlite:///{tmp_path}/nowhere/shop.db")
    _, err = demo.communicate(timeout=HANGS)

    assert demo.returncode == 1
    assert err.startswith("the demo failed: ")
    assert err.count("\n") == 1


async def test_two_demos_share_a_store_and_leave_each_other_alone(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    async with Engine(url, worker=False):
        pass  # the file is there before the two of them come
    first, second = (start(tmp_path, "--store", url, "--kills", "1", "--seed", seed) for seed in ("1", "2"))
    outs = [demo.communicate(timeout=HANGS) for demo in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0), outs


def timer(seq: int) -> events.Event:
    return events.TimerStarted(seq=seq, location=Location.parse("{1}"), command="Timer(0)", deadline=0)


EVERYTHING = Counter(ACTIVITIES)


@pytest.mark.parametrize(
    ("history", "done", "complaint"),
    [
        ([timer(1), events.TimerFired(seq=3, ref=1)], EVERYTHING, "gap"),
        ([timer(1), events.TimerFired(seq=2, ref=1), events.TimerFired(seq=3, ref=1)], EVERYTHING, "answered 2 times"),
        ([timer(1)], EVERYTHING, "answered 0 times"),
        ([events.TimerFired(seq=1, ref=7)], EVERYTHING, "are not commands"),
        ([], EVERYTHING - Counter(["charge_card"]), "never done: charge_card"),
    ],
)
def test_an_outcome_that_is_not_right_is_seen(history, done, complaint):
    with pytest.raises(demo_module.DemoFailed, match=complaint):
        demo_module.check(history, done)


def test_a_right_outcome_is_seen_too():
    demo_module.check([timer(1), events.TimerFired(seq=2, ref=1)], EVERYTHING)


def test_a_failure_is_one_line_and_exit_code_1(capsys):
    def play() -> None:
        raise demo_module.DemoFailed("entry 2 was\nanswered twice")

    assert demo_module._exit_code(play) == 1
    assert capsys.readouterr().err == "the demo failed: entry 2 was answered twice\n"


class Doomed:
    """Workers that end before they serve, each as it is told."""

    serving = False

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.pid = 0

    @property
    def exit_code(self) -> int | None:
        return self.codes[self.pid - 1] if self.pid <= len(self.codes) else None

    def start(self) -> None:
        self.pid += 1

    def kill(self) -> None:
        pass

    def last_log_line(self) -> str:
        return "no such module"


class Endless:
    """The handle of an order that ends when its worker lives."""

    def __init__(self, keeper: Doomed) -> None:
        self.keeper = keeper

    async def history(self) -> list[events.Event]:
        ended = [events.WorkflowDeactivated(seq=2)] if self.keeper.exit_code is None and self.keeper.pid else []
        return [timer(1), *ended]


def doomed(*codes: int) -> demo_module.Demo:
    keeper = Doomed(*codes)
    return demo_module.Demo(demo_module.PlainView(), demo_module.Plan.draw(1, 0), Endless(keeper), keeper)


async def test_workers_that_are_killed_before_they_serve_never_fail_the_demo(capsys):
    await doomed(*[-signal.SIGKILL] * 30, 1, -signal.SIGTERM, 1).follow()

    out = capsys.readouterr().out
    assert re.findall(r"DIED +worker (\d+) by SIGKILL, not by the demo", out) == [str(pid) for pid in range(1, 31)]
    assert out.count("DIED") == 33


async def test_a_worker_that_cannot_begin_fails_the_demo(capsys):
    with pytest.raises(demo_module.DemoFailed, match="ends by itself, with code 1: no such module"):
        await doomed(1, -signal.SIGKILL, 1, 1).follow()

    assert capsys.readouterr().out.count("DIED") == 4


class Late:
    """A worker that begins to serve long after its order waits for the courier, as on a busy machine, and that order."""

    pid, exit_code, entity_id = 1, None, "order"

    def __init__(self) -> None:
        self.looks = 0
        self.happened: list[str] = []

    @property
    def serving(self) -> bool:
        self.looks += 1
        return self.looks > 30

    def start(self) -> None:
        pass

    def kill(self) -> None:
        self.happened.append("kill")

    async def history(self) -> list[events.Event]:
        place = {"seq": 2, "location": Location.parse("{2}"), "command": "Listen(0)"}
        listening = events.ListenStarted(**place, name="courier", names=("courier",))
        ended = [events.WorkflowDeactivated(seq=3)] if "courier" in self.happened else []
        return [timer(1), listening, *ended]

    async def signal(self, name: str, value: str) -> None:
        self.happened.append(name)


async def test_a_kill_that_is_late_comes_before_the_order_can_end():
    late = Late()
    demo = demo_module.Demo(demo_module.PlainView(), demo_module.Plan(1, ((2, 0.0),), "Ada"), late, late)
    await demo.follow()

    assert late.happened == ["kill", "courier", "kill"]  # the last when all is over
    assert demo.killed == 1
