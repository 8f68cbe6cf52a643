"""With ``RESURGAM_DEV=1``: log findings that only the source shows when a worker starts."""

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
    """Log the findings in the source of these workflows that cannot be detected at run time, once for each file."""
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
    """Return the source file of a function; None for one without a file."""
    try:
        file = None if function is None else inspect.getsourcefile(function)
    except TypeError:
        return None
    return file if file is not None and Path(file).is_file() else None
