"""What commands share that serve until they are stopped: the event loop, the log, and the line that they are ready."""

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from resurgam.cli import output
from resurgam.cli.arguments import check_text
from resurgam.cli.text import report_unwritable

if TYPE_CHECKING:
    from resurgam import Outbound

_LEVELS = ("debug", "info", "warning", "error", "critical")
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_WEB = ("httptools", "httpx2", "starlette", "uvicorn", "websockets")

queue_option = click.option(
    "--queue", "queues", callback=check_text, multiple=True, default=["default"], show_default=True, help="Repeatable."
)

log_level_option = click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    help="The level of the log on stderr.  [default: info, unless MODULE configures logging]",
)


def _parse_outbound(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> "Outbound | None":
    from resurgam import Outbound  # noqa: PLC0415 -- few commands need it

    try:
        return Outbound(allow=value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


outbound_option = click.option(
    "--outbound",
    metavar="HOST",
    multiple=True,
    callback=_parse_outbound,
    help="What HTTP steps may call: a host, *.example, a network, or '*'. Repeatable.  "
    "[default: all but link-local and metadata addresses]",
)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop if it is installed, else None for that of asyncio."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def configure_logging(level: str | None) -> None:
    """Log to stderr unless the user's module has configured logging; set the *level* in any case, if given."""
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig(format=_LOG_FORMAT, level=(level or "info").upper())
    elif level is not None:
        root.setLevel(level.upper())
    for name in ("httpcore2", "httpx2", "uvicorn", "websockets"):  # they log requests with their URLs and headers
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            # A warning of uvicorn is about a request that is not valid, which strangers may send at will.
            library.setLevel(logging.ERROR if name == "uvicorn" else logging.WARNING)


def report_ready(content: object, text: str, *, as_json: bool) -> None:
    """Print that the process serves; an output that is closed does not stop it."""
    try:
        output.report(content, text, as_json=as_json)
    except OSError as error:
        report_unwritable(error)


@contextmanager
def web_needed() -> Iterator[None]:
    """Refuse a command of the HTTP API, in one line, where its libraries are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _WEB:
            raise
        message = f"the HTTP API needs {missing}; install it with: pip install 'resurgam[web]'"
        raise click.ClickException(message) from error
