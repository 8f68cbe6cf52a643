"""The command that serves queues: imports the user's module, and runs an engine until it is asked to stop."""

import asyncio
import importlib
import importlib.util
import logging
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import click

from resurgam import Engine
from resurgam.cli import output
from resurgam.cli.arguments import example, read_age, text, with_store

_LEVELS = ("debug", "info", "warning", "error", "critical")
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_OURS = str(Path(__file__).parents[1])
_PAUSE = 1.0
"""Seconds until a process that has ended is replaced."""

_TRIES = 5
_SOON = 10.0
"""As many processes in a row that fail, and have lived no more seconds than that together: it is no use."""


@click.command(
    short_help="Serve queues with the code of MODULE.",
    epilog=example("resurgam worker shop.py --queue default --processes 4 --store sqlite:///shop.db"),
)
@click.argument("module", callback=text)
@click.option(
    "--queue", "queues", callback=text, multiple=True, default=["default"], show_default=True, help="Repeatable."
)
@click.option("--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many to run.")
@click.option(
    "--max-activities",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="How many activities each process runs at once.",
)
@click.option(
    "--retain", metavar="AGE", callback=read_age, help="Remove workflows when they ended that long ago: 12h, 30d, 4w."
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    help="What is logged to stderr.  [default: info, unless MODULE configures logging]",
)
@with_store
def worker(  # noqa: PLR0913 -- each is an option of the command line
    *,
    store: str,
    as_json: bool,
    module: str,
    queues: tuple[str, ...],
    processes: int,
    max_activities: int,
    retain: timedelta | None,
    log_level: str | None,
) -> None:
    """Serve queues with the workflows and activities of MODULE, a dotted name or the path of a .py file.

    SIGTERM or Ctrl-C ends it: what runs may finish, the rest is released for others.
    Of several processes, one that dies is replaced.
    """
    load(module)
    _configure_logging(log_level)
    if processes == 1:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(store, queues, max_activities, retain, as_json=as_json))
        return
    command = [
        sys.executable,
        "-m",
        "resurgam",
        "worker",
        f"--store={store}",
        *(f"--queue={queue}" for queue in queues),
        f"--max-activities={max_activities}",
        *([] if retain is None else [f"--retain={retain.total_seconds():f}s"]),
        *([] if log_level is None else [f"--log-level={log_level}"]),
    ]
    worst = asyncio.run(Crew([*command, *["--json"] * as_json, "--", module], processes).run())
    click.get_current_context().exit(worst)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop there is here: uvloop's, where it is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _configure_logging(level: str | None) -> None:
    """Log to stderr, unless the user's module has configured logging; a *level* that is given holds in any case."""
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig(format=_LOG_FORMAT, level=(level or "info").upper())
    elif level is not None:
        root.setLevel(level.upper())


async def _serve(
    store: str, queues: tuple[str, ...], max_activities: int, retain: timedelta | None, *, as_json: bool
) -> None:
    async with Engine(store, queues=queues, max_activities=max_activities, retain=retain) as engine:
        ready = f"serving queue{'s' * (len(queues) > 1)} {', '.join(queues)} of {store}; stop with Ctrl-C"
        # Said a moment later: by then `run` hears signals, and whoever has read the line may send one.
        asyncio.get_running_loop().call_soon(lambda: _tell({"queues": queues, "store": store}, ready, as_json=as_json))
        await engine.run()


def _tell(content: object, text: str, *, as_json: bool) -> None:
    try:
        output.told(content, text, as_json=as_json)
    except OSError as error:  # nobody reads it; the work is done all the same
        output.unwritable(error)


class Crew:
    """Processes that run one command: signals are passed on, and who dies is replaced."""

    def __init__(self, command: list[str], processes: int) -> None:
        self._command = command
        self._processes = processes
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopping = asyncio.Event()
        self._verdict: int | None = None

    async def run(self) -> int:
        """Keep every place filled until asked to stop; return the worst exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        with ThreadPoolExecutor(self._processes) as threads:  # one waits for each process
            try:
                codes = await asyncio.gather(*(self._fill(threads) for _ in range(self._processes)))
            finally:  # if one cannot be started, the others must not keep us here
                self._stop(signal.SIGTERM)
        return max(codes) if self._verdict is None else self._verdict

    async def _fill(self, threads: ThreadPoolExecutor) -> int:
        """Keep one place filled; return how the last process there has ended."""
        failures: deque[float] = deque(maxlen=_TRIES)
        while True:
            began, child = time.monotonic(), self._spawn()
            code = await asyncio.get_running_loop().run_in_executor(threads, child.wait)
            self._children.remove(child)
            if self._stopping.is_set():
                return code if code >= 0 else 128 - code
            failures.append(time.monotonic() - began)
            if code <= 0:  # killed, or asked to stop: not by itself
                failures.clear()
            ended = f"worker process {child.pid} ended by {output.cause(code)}"
            if len(failures) == _TRIES and sum(failures) <= _SOON:
                click.echo(f"{ended}, {_TRIES} times in a row; all are stopped", err=True)
                self._verdict = code
                self._stop(signal.SIGTERM)
                return code
            click.echo(f"{ended}; another takes its place", err=True)
            if await self._stopped_within(_PAUSE):
                return 0

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A group of its own: Ctrl-C reaches it through us alone, once.
        child = subprocess.Popen(self._command, process_group=0)  # noqa: S603 -- the command is this very program
        self._children.add(child)
        return child

    def _stop(self, number: int) -> None:
        self._stopping.set()
        for child in self._children:
            child.send_signal(number)


def load(module: str) -> ModuleType:
    """Import the user's module; what goes wrong is one line that says where."""
    try:
        if module.endswith(".py"):
            return _load_file(Path(module).absolute())
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(module)
    except click.ClickException:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise click.BadParameter(f"there is no module {module!r} in {Path.cwd()}", param_hint="MODULE") from error
        raise _cannot_import(module, error) from error
    except (Exception, SystemExit) as error:
        raise _cannot_import(module, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="MODULE")
    taken = sys.modules.get(path.stem)
    if taken is not None and getattr(taken, "__file__", None) != str(path):
        raise click.BadParameter(f"{path}: Python has a module {path.stem!r}; rename the file", param_hint="MODULE")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cannot_import(module: str, error: BaseException) -> click.ClickException:
    """Return the error of a module that fails while it is imported, with the line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((_OURS, "<frozen"))]
    places = [f"{frame.filename}:{frame.lineno}: {frame.line}: " for frame in theirs[-1:]]
    if isinstance(error, SyntaxError):
        places = [f"{error.filename}:{error.lineno}: {(error.text or '').strip()}: "]
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return click.ClickException(
        output.one_line(f"cannot import {module}: {''.join(places)}{type(error).__name__}: {reason}")
    )
