"""W12: the start of a process that imports the package, and of the command line."""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from resurgam.bench.figures import Figures, Raw, percentile, sampled
from resurgam.bench.processes import compile_package
from resurgam.bench.scene import Scene

_ROUNDS: Final = 15

_EMPTY_COMMAND = "import click\n@click.command()\ndef main(): pass\nmain()"
_OUR_COMMAND = "from resurgam.cli.main import main\nmain()"  # as the installed script does

_IMPORT = ("import resurgam", "import resurgam", (), "python -c pass", "pass")
_HELP = ("resurgam --help", _OUR_COMMAND, ("--help",), "an empty click command", _EMPTY_COMMAND)


async def startup(scene: Scene) -> list[Figures]:
    """W12: `import resurgam` beside a Python that does nothing, `resurgam --help` beside an empty click command."""
    compile_package()
    found = []
    for title, ours, arguments, of, theirs in (_IMPORT, _HELP):
        bare: list[float] = []
        times: list[float] = []
        for _ in range(max(3, scene.size(_ROUNDS))):
            bare.append(_ended(theirs, arguments))
            times.append(_ended(ours, arguments))
        found.append(
            replace(
                sampled("W12", title, "start", times),
                raw=Raw(of=of, p50=percentile(bare, 0.5)),
                more={"command": float(bool(arguments))},
            )
        )
    return found


def _ended(code: str, arguments: Sequence[str]) -> float:
    """Return the seconds that a new Python needs for some code."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", code, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)  # noqa: S603 -- our own
    return time.perf_counter() - begin
