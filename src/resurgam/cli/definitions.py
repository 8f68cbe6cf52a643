"""Read the definitions of steps: from JSON files, and from modules with ``@step``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from resurgam.cli.module import load_module
from resurgam.cli.text import one_line
from resurgam.flows.model import Step
from resurgam.runtime.definitions.definition import STEP_MARK


def read_steps(sources: Sequence[str]) -> list[Step]:
    """Return the steps of all sources: the path of a JSON file, or a module as `resurgam worker` takes it."""
    found: dict[str, tuple[Step, str]] = {}
    for source in sources:
        for step in _file(Path(source)) if source.endswith(".json") else _module(source):
            known, elsewhere = found.setdefault(step.id, (step, source))
            if known != step:
                raise click.ClickException(
                    one_line(f"{source}: step {step.id!r} is defined differently in {elsewhere}; keep one of them")
                )
    return [step for step, _ in found.values()]


def _file(path: Path) -> Iterator[Step]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise click.ClickException(one_line(f"cannot read {path}: {error.strerror}")) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.ClickException(one_line(f"{path} is not JSON: {error}")) from error
    listed = content["steps"] if isinstance(content, dict) and isinstance(content.get("steps"), list) else content
    if listed == []:
        raise click.ClickException(one_line(f"{path} has no steps"))
    for position, one in enumerate(listed if isinstance(listed, list) else [listed], start=1):
        yield _step(path, position, one)


def _step(path: Path, position: int, content: Any) -> Step:
    try:
        return msgspec.convert(content, Step)
    except (msgspec.ValidationError, RecursionError) as error:
        named = content.get("id") if isinstance(content, dict) else None
        which = f"step {named!r}" if isinstance(named, str) else f"step number {position}"
        raise click.ClickException(one_line(f"{path}: {which}: {error}")) from error


def _module(name: str) -> list[Step]:
    values = vars(load_module(name)).values()
    steps = [getattr(value, STEP_MARK, value) for value in values]
    found = [step for step in steps if isinstance(step, Step)]
    if not found:
        raise click.ClickException(
            one_line(f"{name} defines no steps; write them with @step, or as ScriptStep(...) at the top of the module")
        )
    return found
