"""The first program of the README, run and killed as it says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.limits import HANGS

ROOT = Path(__file__).parents[2]
PROGRAM = re.search(r"```python\n# shop\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
SHORT = PROGRAM.replace("asyncio.sleep(20)", "asyncio.sleep(2)")
"""The program without the time that a reader needs to kill it by hand."""


def test_the_program_of_the_readme_goes_on_after_kill_9_and_charges_once(tmp_path):
    assert SHORT != PROGRAM
    (tmp_path / "shop.py").write_text(SHORT)
    command = [sys.executable, "shop.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "charging o-1\n"
        assert process.stdout.readline() == "shipping o-1\n"
        process.send_signal(signal.SIGKILL)

    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGS, check=True
    )

    assert again.stdout.splitlines() == ["shipping o-1", "receipt for o-1, parcel for o-1"]
