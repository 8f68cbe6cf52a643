"""Watch the store for entries that arrive for instances while they wait."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from resurgam.store.protocol import Store
from resurgam.store.records import InboxChanged
from resurgam.worker.held import HeldInstance
from resurgam.worker.tasks import Tasks

_INTERVAL: Final = 0.005
"""Seconds between two looks for instances that need a watch."""


class InboxWatches:
    """Starts a watch for each instance that waits for longer than most attempts take.

    A watch costs as much as a step, and an entry that arrives meanwhile comes with the answer to the next commit anyway.
    *changed* is called when a watch has ended.
    """

    def __init__(self, store: Store, tasks: Tasks, changed: Callable[[HeldInstance, object], None]) -> None:
        self._store = store
        self._tasks = tasks
        self._changed = changed
        # Instances that have begun to wait, with the end of their log at the last look; None if they were not seen yet.
        self._unwatched: dict[HeldInstance, int | None] = {}
        self._looking = False

    def add(self, held: HeldInstance) -> None:
        """Watch for an instance that begins to wait, unless its attempts end soon."""
        if held.wake_at is not None or not held.attempts:
            self._start(held)
            return
        self._unwatched.setdefault(held)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _look(self) -> None:
        """Start the watches of instances that have waited since the last look."""
        unwatched, self._unwatched = self._unwatched, {}
        for held, seen in unwatched.items():
            if held.waiting and held.watch is None:
                if seen == held.base_seq:
                    self._start(held)
                else:
                    self._unwatched[held] = held.base_seq
        self._looking = bool(self._unwatched)
        if self._looking:
            asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _start(self, held: HeldInstance) -> None:
        watch = InboxChanged(entity_id=held.entity_id, execution_id=held.execution_id, wake=held.wake)
        held.watch = self._tasks.spawn(self._store.wait(watch, held.wake_at), "inbox watch")
        held.watch.add_done_callback(partial(self._ended, held))

    def _ended(self, held: HeldInstance, watch: asyncio.Task[bool]) -> None:
        if held.watch is watch:  # else a commit has changed what is waited for, and nothing has come
            self._changed(held, watch)
