"""Watch the store for entries that arrive for instances while they wait."""

import asyncio
from collections.abc import Callable
from functools import partial

from resurgam.store.protocol import Store
from resurgam.store.records import InboxChanged
from resurgam.worker.held import HeldInstance
from resurgam.worker.tasks import Tasks


class InboxWatches:
    """Starts a watch for each instance that waits longer than for the first step of an attempt.

    Most steps of a busy worker end so soon that they need no watch. *changed* is called when a watch has ended.
    """

    def __init__(self, store: Store, tasks: Tasks, changed: Callable[[HeldInstance, object], None]) -> None:
        self._store = store
        self._tasks = tasks
        self._changed = changed
        # Instances that have begun to wait, and those among them that `_look` has seen once.
        self._new: list[HeldInstance] = []
        self._seen: list[HeldInstance] = []

    def add(self, held: HeldInstance) -> None:
        """Watch for an instance that begins to wait, unless its attempts end at once."""
        if held.wake_at is not None:
            self._start(held)
            return
        if not self._new and not self._seen:
            asyncio.get_running_loop().call_soon(self._look)
        self._new.append(held)

    def _look(self) -> None:
        """Start the watches of instances that still wait when they are seen for the second time.

        By then every attempt that was started before the first time has made its first step.
        """
        seen, new, self._seen, self._new = self._seen, self._new, [], []
        for held in seen:
            if _needs_watch(held):
                self._start(held)
        for held in new:
            if _needs_watch(held):
                self._seen.append(held)
        if self._seen:
            asyncio.get_running_loop().call_soon(self._look)

    def _start(self, held: HeldInstance) -> None:
        watch = InboxChanged(entity_id=held.entity_id, execution_id=held.execution_id, wake=held.wake)
        held.watch = self._tasks.spawn(self._store.wait(watch, held.wake_at), "inbox watch")
        held.watch.add_done_callback(partial(self._ended, held))

    def _ended(self, held: HeldInstance, watch: asyncio.Task[bool]) -> None:
        if held.watch is watch:  # else a commit has changed what is waited for, and nothing has come
            self._changed(held, watch)


def _needs_watch(held: HeldInstance) -> bool:
    """Whether an instance waits, is not watched, and none of its attempts is about to report its end."""
    if not held.waiting or held.watch is not None:
        return False
    for attempt in held.attempts.values():  # noqa: SIM110 -- a loop: this runs once or twice in every step
        if attempt.running is not None and attempt.running.done():
            return False
    return True
