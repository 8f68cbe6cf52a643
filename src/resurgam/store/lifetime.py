"""The lifetime of an open store: until it is closed, and only in the process that opened it.

A fork copies connections, locks and waiting tasks that still belong to the parent. The child must not use them.
"""

import os
import weakref
from collections.abc import Callable

from resurgam.core.errors import StoreError

_open: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


class Lifetime:
    """The time from the opening of a store to its close, or to a fork."""

    def __init__(self, after_fork: Callable[[], None] | None = None) -> None:
        self.refusal: str | None = None
        self._after_fork = after_fork
        self._process = os.getpid()
        self.forked = False
        _open.add(self)

    @property
    def over(self) -> bool:
        """Whether the store may no longer be used."""
        return self.refusal is not None

    def check(self) -> None:
        """Raise `StoreError` if the store may no longer be used."""
        if self.refusal is not None:
            raise StoreError(self.refusal)

    def end(self) -> None:
        """Refuse all further use, because the store is closed."""
        if self.refusal is None:
            self.refusal = "the store is closed; open another engine"
        _open.discard(self)

    def leave_behind(self) -> None:
        """Refuse all further use, because this process is a fork of the one that opened the store."""
        self.forked = True
        self.refusal = (
            f"this store was opened by process {self._process} and cannot be used in its fork {os.getpid()}; "
            "open an engine in each process, after the fork"
        )
        if self._after_fork is not None:
            self._after_fork()


def _leave_behind() -> None:
    for lifetime in list(_open):
        lifetime.leave_behind()
    _open.clear()


os.register_at_fork(after_in_child=_leave_behind)
