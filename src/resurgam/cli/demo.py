"""`resurgam demo`: run an order to its end while its worker is killed at random moments."""

import asyncio
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import quote, unquote, urlsplit

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from resurgam import Engine, Handle, Status
from resurgam.cli import demo_shop as shop
from resurgam.cli import output
from resurgam.core import event as events
from resurgam.core.commands import ANSWERS, COMMANDS
from resurgam.core.errors import ResurgamError, WorkflowFailed
from resurgam.runtime.system import SystemClock, new_id
from resurgam.store.open import shown_url

ORDER: Final = shop.Order("teapot", 4200)
COURIERS: Final = ("Ada", "Grace", "Alan", "Edsger", "Barbara")
LAST_START: Final = 17
"""The number of the entry that schedules the last activity: the last one after which a kill hits a running workflow."""

EFFECTS: Final = "effects.txt"
PATIENCE: Final = 60.0
"""The most seconds that the order may take after the last kill."""

_KILL_SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_clock = SystemClock()


class DemoFailed(Exception):
    """The outcome of the demo is wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The random choices: each kill as an entry and the seconds after it, and the courier."""

    seed: int
    kills: tuple[tuple[int, float], ...]
    courier: str

    @classmethod
    def draw(cls, seed: int, kills: int) -> Self:
        """Draw the plan of a seed."""
        chance = random.Random(seed)
        after = sorted(chance.sample(range(2, LAST_START + 1), kills))
        return cls(seed, tuple((entry, chance.uniform(0, 0.25)) for entry in after), chance.choice(COURIERS))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the timeline: an entry of the history, or the death of a worker."""

    seq: str
    elapsed: float
    type: str
    location: str = ""
    name: str = ""
    style: str = ""

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return the columns."""
        return self.seq, f"{self.elapsed:.2f} s", self.type, self.location, self.name


class View(Protocol):
    """The output of the demo."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def row(self, row: Row) -> None:
        """Show one more line of the timeline."""
        ...

    def print(self, text: str, style: str = "") -> None:
        """Print a line outside of the timeline."""
        ...


class PlainView:
    """Print each line as it comes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def row(self, row: Row) -> None:
        """Print one line of the timeline."""
        seq, elapsed, kind, location, name = row.cells()
        click.echo(f"{seq:>3}  {elapsed:>8}  {kind:<20}  {location:<6}  {name}".rstrip())

    def print(self, text: str, style: str = "") -> None:
        """Print a line."""
        click.echo(text)


class LiveView:
    """Print a live table; of a long one only the end is shown until it is complete."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[Row] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.update(self._table(self._rows), refresh=False)
        self._live.__exit__(kind, error, traceback)

    def row(self, row: Row) -> None:
        """Add a line to the table."""
        self._rows.append(row)
        room = max(1, self._console.height - 6)
        self._live.update(self._table(self._rows[-room:]), refresh=True)

    def print(self, text: str, style: str = "") -> None:
        """Print a line above the live table."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _table(self, rows: Sequence[Row]) -> Table:
        table = Table(title="history", title_justify="left", expand=False)
        table.add_column("seq", justify="right", no_wrap=True)
        table.add_column("elapsed", justify="right", no_wrap=True)
        for title in ("type", "location", "name"):
            table.add_column(title, no_wrap=True, min_width=6)
        for row in rows:
            table.add_row(*map(Text, row.cells()), style=row.style)
        return table


class WorkerProcess:
    """The worker process of the demo, which can be killed and started again."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._log = folder / "worker.log"
        self.effects = folder / EFFECTS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the current process, or of the last one."""
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def serving(self) -> bool:
        """Whether the process has opened the store."""
        return any(pid == self.pid for pid, _ in shop.read_effects(self.effects, shop.SERVING))

    def start(self) -> None:
        """Start a worker in its own session, so that Ctrl-C in the terminal reaches only the demo."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- this Python, and a URL as one argument
                [sys.executable, "-m", "resurgam.cli.demo_shop", self._url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, shop.EFFECTS: str(self.effects), shop.QUEUE: self._queue},
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_log_line(self) -> str:
        """Return the last line of the workers' log."""
        lines = self._log.read_text("utf-8", "replace").split("\n") if self._log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "its log is empty")


class Demo:
    """Follow one order to its end, and kill its worker on the way."""

    def __init__(self, view: View, plan: Plan, handle: Handle[shop.Shipped], worker: WorkerProcess) -> None:
        self._view = view
        self.plan = plan
        self.handle = handle
        self._worker = worker
        self._kills = list(plan.kills)
        self._kill_at: float | None = None
        self._courier_at: float | None = None
        self._courier_sent = False
        self._crashes = 0
        self._failed_starts = 0
        self._reported_pid = 0
        self._end = 0.0
        self.history: list[events.Event] = []
        self.killed = 0

    async def follow(self) -> None:
        """Show the history as it grows, until it is complete."""
        self._end = time.monotonic() + PATIENCE
        self._worker.start()
        try:
            while not await self._complete():
                if time.monotonic() > self._end:
                    waiting = ", ".join((await self.handle.describe()).waiting_for)
                    raise DemoFailed(f"the order is not finished after {PATIENCE:g} s; it waits for {waiting}")
                await self._send_courier()
                await self._replace_dead()
                await self._kill_if_due()
                await asyncio.sleep(0.02)
            if self._worker.exit_code is not None and self._worker.pid != self._reported_pid:
                self._died(self._worker.exit_code)
        finally:
            self._worker.kill()

    async def _complete(self) -> bool:
        """Show new entries, and return whether the history is complete."""
        history = await self.handle.history()
        for event in history[len(self.history) :]:
            self._view.row(_row(event, history))
        self.history = history
        return isinstance(history[-1], events.WorkflowDeactivated)

    async def _send_courier(self) -> None:
        """Send the signal a moment after the workflow has started to wait for it."""
        if self._courier_sent or not any(isinstance(event, events.ListenStarted) for event in self.history):
            return
        if self._kills and self._kills[0][0] <= len(self.history):
            return  # the order may end soon after; a busy machine is late with this kill, and must not miss it
        now = time.monotonic()
        if self._courier_at is None:
            self._courier_at = now + 0.3
        if now >= self._courier_at:
            self._courier_sent = True
            await self.handle.signal("courier", self.plan.courier)

    async def _kill_if_due(self) -> None:
        """Kill the worker if the next kill is due, and start another."""
        if not self._kills or len(self.history) < self._kills[0][0] or not self._worker.serving:
            return
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + self._kills[0][1]
        if now >= self._kill_at:
            self._worker.kill()
            self._kills.pop(0)
            self._kill_at = None
            self.killed += 1
            ended = await self._complete()  # show the entries that it still recorded above the line
            self._show_death("KILLED", f"worker {self._worker.pid} by SIGKILL")
            if not ended:
                self._worker.start()

    async def _replace_dead(self) -> None:
        """Start another worker if this one has died by itself or was killed by the user; fail if it cannot run."""
        code = self._worker.exit_code
        if code is None:
            return
        ended = await self._complete()  # show the entries that it still recorded above the line
        self._died(code)
        if -code in _KILL_SIGNALS:
            self._end = time.monotonic() + PATIENCE
        self._crashes += code > 0
        self._failed_starts = 0 if self._worker.serving else self._failed_starts + (code >= 0)
        if self._failed_starts >= 3 or self._crashes > 20:
            raise DemoFailed(f"the worker ends by itself, with code {code}: {self._worker.last_log_line()}")
        if not ended:
            self._worker.start()

    def _died(self, code: int) -> None:
        self._show_death("DIED", f"worker {self._worker.pid} by {output.exit_text(code)}, not by the demo")

    def _show_death(self, what: str, how: str) -> None:
        """Show that a worker has ended."""
        self._reported_pid = self._worker.pid
        elapsed = (_clock.now() - self.history[0].at) / 1000
        self._view.row(Row("", elapsed, what, name=how, style="bold red"))


def _row(event: events.Event, history: Sequence[events.Event]) -> Row:
    """Return the line of an entry; an answer has the location and the name of its command."""
    about = event if event.ref is None else history[event.ref - 1]
    style = "green" if event.ref else "bold" if event.type.startswith("workflow_") else ""
    elapsed = (event.at - history[0].at) / 1000
    return Row(str(event.seq), elapsed, event.type, str(about.location or ""), about.name or "", style)


def check(history: Sequence[events.Event], done: Counter[str]) -> None:
    """Raise `DemoFailed` unless each command is answered once, ``seq`` has no gap, and every effect is there."""
    if [event.seq for event in history] != list(range(1, len(history) + 1)):
        raise DemoFailed(f"the history has a gap or a double: {[event.seq for event in history]}")
    answers = Counter(event.ref for event in history if isinstance(event, ANSWERS))
    issued = commands(history)
    wrong = [command for command in issued if answers[command.seq] != 1]
    if wrong:
        seq = wrong[0].seq
        raise DemoFailed(f"entry {seq} ({wrong[0].type}) was answered {answers[seq]} times")
    if stray := answers.keys() - {command.seq for command in issued}:
        raise DemoFailed(f"there are answers to entries {sorted(map(str, stray))}, which are not commands")
    if missing := [step for step in shop.steps() if not done[step]]:
        raise DemoFailed(f"recorded, but never done: {', '.join(missing)}")


def commands(history: Sequence[events.Event]) -> list[events.Event]:
    """Return the entries that need an answer."""
    return [event for event in history if isinstance(event, events.Command) and COMMANDS[type(event)].answers]


async def _outcome(handle: Handle[shop.Shipped], plan: Plan) -> shop.Shipped:
    """Return the result; raise `DemoFailed` unless it is the expected one."""
    result = await handle.result(timeout=5)
    status = (await handle.describe()).status
    if status is not Status.COMPLETED:
        raise DemoFailed(f"the workflow is {status}, not completed")
    if result != (wanted := shop.expected(ORDER, plan.courier)):
        raise DemoFailed(f"the result is {result}, not {wanted}")
    return result


def _runs(started: Counter[str], done: Counter[str]) -> list[str]:
    """Return the lines about activities that ran once, and that ran again."""
    once = [step for step in shop.steps() if started[step] == 1]
    again = [
        f"ran again   {step}: started {_times(started[step])}, its effect happened {_times(done[step])}"
        for step in shop.steps()
        if started[step] > 1
    ]
    return [f"ran once    {', '.join(once) or 'nothing'}", *(again or ["ran again   nothing"])]


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


async def _play(url: str, view: View, plan: Plan, folder: Path) -> None:
    """Run the demo; raise `DemoFailed` unless the outcome is right."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    started_at = time.monotonic()
    async with Engine(url, registry=shop.registry, worker=False) as engine:
        order_id = f"order-{new_id(_clock.now())[-6:].lower()}"
        handle = await engine.start(shop.demo_order, ORDER, id=order_id, queue=order_id)
        demo = Demo(view, plan, handle, WorkerProcess(url, order_id, folder))
        try:
            with view:
                await demo.follow()
            for line in _summary(demo, await _outcome(handle, plan), folder / EFFECTS):
                view.print(line)
        finally:
            _print_files(view, url, order_id, folder)
    view.print(f"all is well after {time.monotonic() - started_at:.1f} s", "bold green")


def _summary(demo: Demo, result: shop.Shipped, effects: Path) -> list[str]:
    """Check the history of a completed order, and return the lines of the summary."""
    order_id = demo.handle.entity_id
    started, done = (
        Counter(step for _, step in shop.read_effects(effects, kind, order_id)) for kind in (shop.STARTED, shop.DONE)
    )
    check(demo.history, done)
    number = len(demo.history)
    return [
        f"result      {result.reservation}, {', '.join(result.parcels)}, courier {result.courier}, {result.receipt}",
        f"kills       {demo.killed} of {len(demo.plan.kills)} planned",
        f"history     {number} events, seq 1 to {number} without a gap",
        f"answers     {len(commands(demo.history))} commands, each answered exactly once, none twice",
        *_runs(started, done),
    ]


def _print_files(view: View, url: str, order_id: str, folder: Path) -> None:
    view.print(f"database    {Path(unquote(urlsplit(url).path[1:])).absolute()}")
    view.print(f"effects     {folder / EFFECTS}")
    view.print(f"look at it  resurgam history {order_id} --store {shlex.quote(url)}")


def _check_store(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Refuse a store that two processes cannot share."""
    if url is not None and (urlsplit(url).scheme != "sqlite" or len(urlsplit(url).path) < 2):
        raise click.BadParameter(
            f"{shown_url(url)!r}: the demo needs a file that two processes share: sqlite:///shop.db"
        )
    return url


def _view(*, plain: bool) -> View:
    console = Console()
    live = not plain and sys.stdout.isatty() and not console.is_dumb_terminal
    return LiveView(console) if live else PlainView()


def _exit_code(play: Callable[[], None]) -> int:
    """Run the demo and return the exit code; print an error as one line."""
    try:
        play()
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("stopped; the worker was killed, the order stays in the database as it is", err=True)
        return 130
    except (DemoFailed, ResurgamError) as error:
        cause = f": {error.__cause__}" if isinstance(error, WorkflowFailed) else ""
        click.echo(f"the demo failed: {error}{cause}".replace("\n", " "), err=True)
        return 1
    return 0


@click.command("demo")
@click.option(
    "--store", metavar="URL", callback=_check_store, help="A SQLite store; by default a new file, which is kept."
)
@click.option("--seed", type=int, help="The seed of the times of the kills; random by default.")
@click.option(
    "--kills", type=click.IntRange(0, 8), default=2, show_default=True, help="How often the worker is killed."
)
@click.option("--plain", is_flag=True, help="Print lines as they come, without a live view.")
def demo_command(store: str | None, seed: int | None, kills: int, *, plain: bool) -> None:
    """Run an order whose worker is killed at random moments, and watch it finish."""
    plan = Plan.draw(random.SystemRandom().randrange(1_000_000) if seed is None else seed, kills)
    folder = Path(tempfile.mkdtemp(prefix="resurgam-demo-"))
    url = store or f"sqlite:///{quote(str(folder / 'demo.db'))}"
    view = _view(plain=plain)
    view.print(f"seed        {plan.seed} (again: resurgam demo --seed {plan.seed} --kills {kills})")
    code = _exit_code(lambda: asyncio.run(_play(url, view, plan, folder)))
    with suppress(OSError):
        sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    demo_command()
