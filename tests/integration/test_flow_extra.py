"""The extra ``[flows]``: only expressions and scripts need it, and whoever uses one without it is told."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys

for name in ("cel_expr_python", "lupa"):
    sys.modules[name] = None  # as if it were not installed

from resurgam import Engine
from resurgam.errors import DefinitionError
from resurgam.flows import ScriptStep, step

@step
def order(order_id: str) -> list[str]:
    return ["book"]

@step
def price(order: list[str]) -> int:
    return 10 * len(order)

async def main():
    async with Engine() as engine:
        flow = await engine.start_flow(["price"], {"order_id": "o-1"})
        assert await flow.result() == {"price": 10}
        try:
            await engine.register_step(STEP)
        except DefinitionError as error:
            print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ('ScriptStep("total", "return 1")', "step 'total': script: this expression needs the package lupa"),
        (
            'ScriptStep("total", "x", language="cel", inputs=["x"])',
            "step 'total': script: this expression needs the package cel-expr-python",
        ),
    ],
)
def test_flows_of_functions_run_without_the_extra_and_a_script_names_it(step, message):
    program = PROGRAM.replace("STEP)", f"{step})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == f"{message}: pip install 'resurgam[flows]'"
