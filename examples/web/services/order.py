"""A flow whose three steps are services: one in Perl, one with nothing but Python's standard library, one asynchronous.

Watch for: this program knows the engine only by its HTTP API, as a program in any language does. The order of the steps is
written nowhere: it follows from their inputs and outputs. The stock answers its first call by 503, and is called again.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

HERE = Path(__file__).parent
SERVE = [sys.executable, "-m", "resurgam", "serve", "--port", "0", "--json", "--store"]


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[str]:
    """Run a program that prints its address; yield what it prints."""
    with subprocess.Popen([*command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def service(
    id: str, url: str, path: str, inputs: dict[str, str], output: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return the definition of a step that is a service."""
    attributes = {name: {"role": "required", "type": kind} for name, kind in inputs.items()}
    attributes |= {name: {"role": "output", "type": kind} for name, kind in output.items()}
    http = {"endpoint": url + path, "health_check": f"{url}/health"}
    return {"id": id, "name": id, "type": "sync", "attributes": attributes, "http": http, **more}


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running("perl", HERE / "stock.pl") as stock,
        running(sys.executable, HERE / "prices.py") as prices,
        running(sys.executable, HERE / "carrier.py") as carrier,
        running(*SERVE, f"sqlite:///{folder}/shop.db") as served,
        httpx2.Client(base_url=json.loads(served)["url"], timeout=60) as api,
    ):
        for step in (
            service("reserve", stock, "/reserve", {"item": "string"}, {"shelf": "number"}),
            service("price", prices, "/price", {"item": "string"}, {"cents": "number"}),
            service(
                "ship",
                carrier,
                "/ship",
                {"item": "string", "shelf": "number", "cents": "number"},
                {"parcel": "string"},
                type="async",
            ),
        ):
            api.post("/steps", json=step).raise_for_status()
        for order, item in {"o-1": "piano", "o-2": "tuba"}.items():
            api.post("/flows", json={"id": order, "goals": ["ship"], "init": {"item": item}}).raise_for_status()
            outcome = api.get(f"/flows/{order}/result").json()
            print(order, outcome["status"], outcome["result"] or outcome["error"]["message"])


if __name__ == "__main__":
    main()
