"""`ctx.continue_as_new`: the execution ends here, and the next begins with other arguments."""

from msgspec import Raw

from resurgam.core.errors import ContinueAsNew


class Continuation(ContinueAsNew):
    """What `ctx.continue_as_new` raises; *written* are the arguments as they are recorded."""

    def __init__(self, args: tuple[object, ...], signals: str, written: Raw) -> None:
        super().__init__(args, signals)
        self.written = written
