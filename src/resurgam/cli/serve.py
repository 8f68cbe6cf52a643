"""`resurgam serve`: the HTTP API of a store, with a worker inside."""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec

from resurgam.cli.arguments import check_text, example, with_store
from resurgam.cli.module import load_module
from resurgam.cli.process import configure_logging, log_level_option, loop_factory, report_ready, web_needed
from resurgam.cli.worker_options import WorkerOptions, with_worker_options
from resurgam.store.open import shown_url
from resurgam.worker.garbage import collect_rarely

if TYPE_CHECKING:
    from resurgam.web.server import Address


def _check_url(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return a URL without a slash at its end; refuse one to which no path can be added."""
    if value is None:
        return None
    check_text(context, parameter, value)
    try:
        parts = urlsplit(value)
        is_plain = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        is_plain = is_plain and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        is_plain = False
    if not is_plain:
        message = "must be a URL such as https://flows.example.com, without a name, a query or a fragment"
        raise click.BadParameter(message, context, parameter)
    return value.rstrip("/")


@click.command(epilog=example("resurgam serve shop.py --port 8080 --store sqlite:///shop.db"))
@click.argument("module", required=False, callback=check_text)
@click.option(
    "--host", default="127.0.0.1", show_default=True, callback=check_text, help="The address to listen on, or a name."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0: one that is free."
)
@click.option(
    "--public-url",
    metavar="URL",
    callback=_check_url,
    help="The URL under which step services reach this server.  [default: http://HOST:PORT]",
)
@click.option("--require-keys", is_flag=True, help="Require API keys on loopback too, as behind a proxy.")
@click.option(
    "--allow-argyll",
    is_flag=True,
    help="Serve the protocol of Argyll where keys are required: any client that reaches the server can use it, without a key.",
)
@with_worker_options
@log_level_option
@with_store
def serve(  # noqa: PLR0913 -- each is an option of the command line
    *,
    store: str,
    as_json: bool,
    module: str | None,
    host: str,
    port: int,
    public_url: str | None,
    require_keys: bool,
    allow_argyll: bool,
    options: WorkerOptions,
    log_level: str | None,
) -> None:
    """Serve the HTTP API, and queues with the code of MODULE, a dotted name or the path of a .py file.

    Without MODULE it serves goal flows whose steps are scripts or services. On another address than loopback every
    request needs an API key: resurgam keys create makes one.

    SIGTERM or Ctrl-C stops it: requests in flight are answered, running work may finish, the rest is released for other
    workers. A second signal does not wait for them.
    """
    with web_needed():
        from resurgam.web.server import Options, Server  # noqa: PLC0415 -- its libraries may be missing
    if module is not None:
        load_module(module)
    configure_logging(log_level)
    served = Options(
        store=store,
        host=host,
        port=port,
        public_url=public_url,
        require_keys=require_keys,
        argyll=allow_argyll,
        **options.for_engine(),
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(Server(served).run(lambda address: _report(address, store, as_json=as_json)))


def _report(address: "Address", store: str, *, as_json: bool) -> None:
    collect_rarely()  # now that everything is imported and open
    shown = shown_url(store)
    keys = " with API keys" if address.needs_keys else ""
    public = f", for step services at {address.public_url}" if address.public_url != address.url else ""
    text = f"serving {shown} at {address.url}{keys}{public}; stop with Ctrl-C"
    report_ready({**msgspec.structs.asdict(address), "store": shown}, text, as_json=as_json)
