"""One work item of an HTTP step, or the compensation of one, as the input of its activity."""

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core.retry import RetryRule
from resurgam.flows.model import Method

Mode: TypeAlias = Literal["sync", "async", "compensate"]

DEFAULT_TIMEOUT: Final = 30_000
"""Milliseconds that one call may take, unless the step says otherwise."""

DEFAULT_DEADLINE: Final = 3_600_000
"""Milliseconds that an async step has for its answer, from its acknowledgement on."""


class HttpCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is called for a work item, the same for all its attempts. It holds no secret: it is recorded.

    *url* is the endpoint of the step, or its address for compensations, with parameters in braces. *receipt* is the id
    of the work item, also for its compensation. *arguments* are by inner name; *outputs* is what the work item returned,
    an object, for a compensation only. *webhook_arguments* are the inner names of arguments that get the address to
    which the answer of an async step is sent. *retry* counts calls, not deliveries of the activity.
    """

    flow_id: str
    step_id: str
    receipt: str
    url: str
    method: Method = "POST"
    mode: Mode = "sync"
    arguments: dict[str, Raw] = {}
    outputs: Raw = Raw(b"{}")
    timeout_ms: int = DEFAULT_TIMEOUT
    deadline_ms: int = DEFAULT_DEADLINE
    webhook_arguments: tuple[str, ...] = ()
    retry: RetryRule = RetryRule()
