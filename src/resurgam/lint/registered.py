"""What ``RESURGAM_DEV=1`` cannot see while workflows run, said when a worker opens: it shows in the source only."""

import inspect
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from resurgam.lint.check import Unreadable, check_file
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.forbidden import SEEN_IN_SOURCE_ONLY

logger = logging.getLogger("resurgam.dev")


def warn(workflows: Iterable[Workflow[..., Any]]) -> None:
    """Log what is found in the source of these workflows and leaves no trace at run time, once for each file."""
    for file in sorted({file for workflow in workflows if (file := _source(workflow.function)) is not None}):
        try:
            report = check_file(Path(file))
        except Unreadable as error:
            logger.warning("%s", error)
            continue
        for finding in report.findings:
            if finding.rule.code in SEEN_IN_SOURCE_ONLY:
                logger.warning("%s", finding)


def _source(function: Callable[..., object] | None) -> str | None:
    """Return the file of a function; none for one that was typed in or made up."""
    try:
        file = None if function is None else inspect.getsourcefile(function)
    except TypeError:
        return None
    return file if file is not None and Path(file).is_file() else None
