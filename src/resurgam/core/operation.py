"""A side effect of an instance (``ctx.run``), run by the worker that holds the instance."""

from collections.abc import Callable

import msgspec

from resurgam.core import event as events
from resurgam.core.codec import MAX_PAYLOAD, Codec, check_size
from resurgam.core.errors import SerializationError
from resurgam.core.failure import capture, in_user_code


class Operation(msgspec.Struct, frozen=True):
    """The function to call, and how to record its result. It may start once its command is committed."""

    ref: int
    name: str
    function: Callable[..., object]
    args: tuple[object, ...]
    result: Codec[object]
    max_payload: int = MAX_PAYLOAD

    def completed(self, value: object, at: int) -> events.Event:
        """Return the answer for a result of the function; a result that cannot be encoded is a failure."""
        try:
            what = f"result of operation {self.name!r}"
            written = check_size(self.max_payload, self.result.check(value, what), what)
        except SerializationError as error:
            return self.failed(error, at)
        return events.OperationCompleted(ref=self.ref, at=at, result=written)

    def failed(self, error: BaseException, at: int) -> events.Event:
        """Return the answer for an exception of the function."""
        return events.OperationFailed(ref=self.ref, at=at, failure=capture(in_user_code(error), limit=self.max_payload))
