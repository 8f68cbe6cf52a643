"""`ctx.continue_as_new`: end this execution and start the next with other arguments."""

from msgspec import Raw

from resurgam.core.errors import ContinueAsNew


class Continuation(ContinueAsNew):
    """Raised by `ctx.continue_as_new`; *written* are the encoded arguments."""

    def __init__(self, args: tuple[object, ...], signals: str, written: Raw) -> None:
        super().__init__(args, signals)
        self.written = written
