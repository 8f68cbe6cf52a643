"""Read an open file, and refuse its use once the store is closed or the file is lost."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from resurgam.store.lifetime import Lifetime
from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.session import Row, Session

T = TypeVar("T")


class OpenFile:
    """The file of a store that may be closed, forked, or lose its file."""

    def __init__(self, database: Database, lifetime: Lifetime) -> None:
        self._database = database
        self._lifetime = lifetime

    def check(self) -> None:
        """Raise `StoreError` if the store must not be used any more."""
        if self._lifetime.refusal is not None:
            self._lifetime.check()
        if self._database.lost:
            self._database.check_files()

    def read(self, look: Callable[[Session], T]) -> T:
        """Return what *look* finds in one consistent state."""
        self.check()
        return self._database.read(look)

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run one statement that only reads, and return its rows."""
        self.check()
        return self._database.fetch(query, **parameters)

    def close(self) -> None:
        """Do nothing: the store closes its file."""
