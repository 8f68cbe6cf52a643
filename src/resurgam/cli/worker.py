"""`resurgam worker`: import the user's module and serve queues until the process is stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import click

from resurgam import Engine
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.module import load_module
from resurgam.cli.process import configure_logging, log_level_option, loop_factory, report_ready
from resurgam.cli.worker_options import WorkerOptions, with_worker_options
from resurgam.store.open import shown_url
from resurgam.worker.garbage import collect_rarely

_RESTART_DELAY = 1.0
"""Seconds until a process that has ended is replaced."""

_MAX_FAILURES = 5
_FAILURE_SECONDS = 10.0
"""All processes are stopped after this many failures in a row that took no more seconds than this together."""

_PARENT = "RESURGAM_PARENT"
"""The variable with the descriptor of a pipe whose other end the parent of a worker process holds."""


@click.command(
    epilog=example("resurgam worker shop.py --queue default --processes 4 --store sqlite:///shop.db"),
)
@click.argument("module", callback=check_text)
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="The number of processes."
)
@click.option(
    "--max-activities",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="The number of activities that each process runs at once.",
)
@with_worker_options
@log_level_option
@with_store
def worker(
    *,
    store: str,
    as_json: bool,
    module: str,
    processes: int,
    max_activities: int,
    options: WorkerOptions,
    log_level: str | None,
) -> None:
    """Serve queues with the workflows and activities of MODULE, a dotted name or the path of a .py file.

    SIGTERM or Ctrl-C stops it: running work may finish, the rest is released for other workers.
    With several processes, one that dies is replaced.
    """
    load_module(module)
    configure_logging(log_level)
    if processes == 1:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            engine = Engine(store, max_activities=max_activities, **options.for_engine())
            runner.run(_serve(engine, store, options.queues, as_json=as_json))
        return
    # A store that cannot be opened is told of once, here; processes that find it so later are replaced until it can.
    call_engine(store, lambda engine: engine.store.workers.list(), create=True)
    command = [sys.executable, "-m", "resurgam", "worker", *options.for_command(), f"--max-activities={max_activities}"]
    command += [] if log_level is None else [f"--log-level={log_level}"]
    command += [*["--json"] * as_json, "--", module]
    code = asyncio.run(WorkerProcesses(command, processes, store=store).run())
    click.get_current_context().exit(code)


async def _serve(opened: Engine, store: str, queues: tuple[str, ...], *, as_json: bool) -> None:
    _stop_with_parent()
    async with opened as engine:
        collect_rarely()
        shown = shown_url(store)
        ready = f"serving queue{'s' * (len(queues) > 1)} {', '.join(queues)} of {shown}; stop with Ctrl-C"
        # One iteration later, when `run` handles signals: a reader of this line may send one at once.
        asyncio.get_running_loop().call_soon(
            lambda: report_ready({"queues": queues, "store": shown}, ready, as_json=as_json)
        )
        await engine.run()


def _stop_with_parent() -> None:
    """Stop, as a signal does, when the process ends that has started this one: it may be killed without a word."""
    descriptor = os.environ.pop(_PARENT, None)  # programs that activities start are not meant
    if descriptor is not None:
        loop, pipe = asyncio.get_running_loop(), int(descriptor)

        def stop() -> None:
            loop.remove_reader(pipe)
            os.kill(os.getpid(), signal.SIGTERM)

        os.set_inheritable(pipe, False)  # noqa: FBT003 -- it takes no keyword
        loop.add_reader(pipe, stop)


class WorkerProcesses:
    """Processes that run one command: pass signals on to them, and replace those that die.

    They find the URL of the store, which may have a password in it, in their environment: every user sees a command line.
    Each has one end of a pipe, so that they end with this process, however that ends.
    """

    def __init__(self, command: list[str], processes: int, *, store: str) -> None:
        self._command = command
        self._pipe, self._own_end = os.pipe()
        self._environment = {**os.environ, "RESURGAM_STORE": store, _PARENT: str(self._pipe)}
        self._processes = processes
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopping = asyncio.Event()
        self._failed_code: int | None = None

    async def run(self) -> int:
        """Keep all processes running until stopped by a signal; return the highest exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        try:
            codes = await self._run_all()
        finally:  # no process is left
            os.close(self._own_end)
            os.close(self._pipe)
        return max(codes) if self._failed_code is None else self._failed_code

    async def _run_all(self) -> list[int]:
        with ThreadPoolExecutor(self._processes) as threads:  # one waits for each process
            try:
                return await asyncio.gather(*(self._keep_running(threads) for _ in range(self._processes)))
            finally:  # if one cannot be started, stop the others
                self._stop(signal.SIGTERM)

    async def _keep_running(self, threads: ThreadPoolExecutor) -> int:
        """Start a process and its replacements; return the exit code of the last one."""
        failures: deque[float] = deque(maxlen=_MAX_FAILURES)
        while True:
            started_at, child = time.monotonic(), self._spawn()
            code = await asyncio.get_running_loop().run_in_executor(threads, child.wait)
            self._children.remove(child)
            if self._stopping.is_set():
                return code if code >= 0 else 128 - code
            failures.append(time.monotonic() - started_at)
            if code <= 0:  # killed or stopped from outside: not a failure of its own
                failures.clear()
            ended = f"worker process {child.pid} ended with {output.exit_text(code)}"
            if len(failures) == _MAX_FAILURES and sum(failures) <= _FAILURE_SECONDS:
                click.echo(f"{ended}, {_MAX_FAILURES} times in a row; stopping all processes", err=True)
                self._failed_code = code
                self._stop(signal.SIGTERM)
                return code
            click.echo(f"{ended}; starting another", err=True)
            if await self._stopped_within(_RESTART_DELAY):
                return 0

    def stop(self) -> None:
        """Stop all processes, as a signal does."""
        self._stop(signal.SIGTERM)

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A process group of its own, so that Ctrl-C reaches it once, through this process.
        child = subprocess.Popen(  # noqa: S603 -- the command is this program
            self._command, process_group=0, env=self._environment, pass_fds=[self._pipe]
        )
        self._children.add(child)
        return child

    def _stop(self, number: int) -> None:
        self._stopping.set()
        for child in self._children:
            child.send_signal(number)
