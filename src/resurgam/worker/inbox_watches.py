"""Watch the store for entries that arrive for instances while they wait."""

import asyncio
from collections.abc import Callable, Sequence
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
        # Those that are *looked_for*.
        self._unwatched: list[HeldInstance] = []

    def add(self, held: HeldInstance) -> None:
        """Watch for an instance that begins to wait, unless its attempts end soon.

        It is *looked_for* then, and need not be added again when it waits for the next ones.
        """
        if held.wake_at is not None or not held.attempts:
            self._start(held)
            return
        if not self._unwatched:
            asyncio.get_running_loop().call_later(_INTERVAL, self._look)
        if not held.looked_for:
            held.looked_for = True
            self._unwatched.append(held)

    def _look(self) -> None:
        """Look again at those that wait now, when every attempt that has been started has made its first step."""
        waiting = [(held, held.base_seq) for held in self._unwatched if held.waiting]
        asyncio.get_running_loop().call_soon(self._look_again, waiting)

    def _look_again(self, waiting: Sequence[tuple[HeldInstance, int]]) -> None:
        """Start the watches of instances that have made no step since the last look."""
        for held, seq in waiting:
            if held.waiting and held.watch is None and held.base_seq == seq:
                self._start(held)
        looked_for, self._unwatched = self._unwatched, []
        for held in looked_for:
            if held.released or held.watch is not None:
                held.looked_for = False
            else:
                self._unwatched.append(held)
        if self._unwatched:
            asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _start(self, held: HeldInstance) -> None:
        watch = InboxChanged(entity_id=held.entity_id, execution_id=held.execution_id, wake=held.wake)
        held.watch = self._tasks.spawn(self._store.wait(watch, held.wake_at), "inbox watch")
        held.watch.add_done_callback(partial(self._ended, held))

    def _ended(self, held: HeldInstance, watch: asyncio.Task[bool]) -> None:
        if held.watch is watch:  # else a commit has changed what is waited for, and nothing has come
            self._changed(held, watch)
