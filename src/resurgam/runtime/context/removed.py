"""`ctx.removed`: notes of calls that were removed from the code.

If the history holds the call, it is skipped, with everything below it. If the history ends before it, a mark is
recorded, so that later replays of the same code find it. If the history continues with another call, the note has no
effect.
"""

import asyncio
from collections.abc import Iterable

from resurgam.core import event as events
from resurgam.core.errors import DefinitionError
from resurgam.core.flow_event import flow_name
from resurgam.runtime.context.child_flows import goal_names
from resurgam.runtime.definitions.definition import Activity, Workflow
from resurgam.runtime.matching.recorder import Recorder


class Removed:
    """The verbs of a context as notes of removed calls. Each must be awaited, and returns None."""

    def __init__(self, recorder: Recorder, step: int | None) -> None:
        self._recorder = recorder
        self._step = step

    def activity(self, activity: Activity[..., object] | str) -> "asyncio.Future[None]":
        """Note a removed activity, by its function or its name."""
        name = activity.name if isinstance(activity, Activity) else activity
        return self._remove(events.ActivityScheduled, _check_name("activity", name))

    def run(self, name: str) -> "asyncio.Future[None]":
        """Note a removed side effect, by the name of its function or the name given to it."""
        return self._remove(events.OperationStarted, _check_name("run", getattr(name, "__name__", name)))

    def sleep(self) -> "asyncio.Future[None]":
        """Note a removed sleep, or a timeout."""
        return self._remove(events.TimerStarted, None)

    def listen(self, *names: str) -> "asyncio.Future[None]":
        """Note a removed listener, by its names; without names, any listener."""
        return self._remove(events.ListenStarted, ", ".join(_check_name("listen", name) for name in names) or None)

    def set(self, key: str) -> "asyncio.Future[None]":
        """Note a removed ``ctx.set``."""
        return self._remove(events.StateSet, _check_name("set", key))

    def clear(self, key: str) -> "asyncio.Future[None]":
        """Note a removed ``ctx.clear``."""
        return self._remove(events.StateCleared, _check_name("clear", key))

    def get(self, key: str) -> "asyncio.Future[None]":
        """Note a removed ``ctx.get`` beside a forgetting loop; other reads are not recorded."""
        return self._remove(events.StateRead, _check_name("get", key))

    def tag(self) -> "asyncio.Future[None]":
        """Note a removed ``ctx.tag``."""
        return self._remove(events.TagsSet, None)

    def branch(self, name: str | None = None) -> "asyncio.Future[None]":
        """Note a removed branch or task, with everything it did."""
        return self._remove(events.BranchStarted, name if name is None else _check_name("branch", name))

    map = branch

    def race(self) -> "asyncio.Future[None]":
        """Note a removed race, with everything its competitors did below it."""
        return self._remove(events.RaceStarted, None)

    def loop(self) -> "asyncio.Future[None]":
        """Note a removed loop, with all its iterations."""
        return self._remove(events.LoopStarted, None)

    def workflow(self, workflow: Workflow[..., object] | str) -> "asyncio.Future[None]":
        """Note a removed child, by its function or its name; a running child is abandoned."""
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        return self._remove(events.ChildScheduled, _check_name("workflow", name))

    def flow(self, goals: Iterable[object] | str) -> "asyncio.Future[None]":
        """Note a removed flow, by its goals, or by its name, which is its goals; a running flow is abandoned."""
        name = goals if isinstance(goals, str) else flow_name(goal_names(goals))
        return self._remove(events.FlowScheduled, _check_name("flow", name))

    def promise(self, name: str) -> "asyncio.Future[None]":
        """Note a removed promise, by its name."""
        return self._remove(events.PromiseCreated, _check_name("promise", name))

    def resolve(self, promise_id: str) -> "asyncio.Future[None]":
        """Note a removed settlement of a promise, by its id."""
        return self._remove(events.PromiseSettled, _check_name("resolve", promise_id))

    def signal(self, name: str) -> "asyncio.Future[None]":
        """Note a removed signal to another workflow, by its name."""
        return self._remove(events.SignalSent, _check_name("signal", name))

    def publish(self, topic: str) -> "asyncio.Future[None]":
        """Note a removed message, by its topic."""
        return self._remove(events.MessagePublished, _check_name("publish", topic))

    def step(self, activity: Activity[..., object] | str) -> "asyncio.Future[None]":
        """Note a removed saga step, by its activity; it is no longer compensated."""
        name = activity.name if isinstance(activity, Activity) else activity
        return self._remove(events.SagaStepRegistered, _check_name("step", name))

    def check_version(self, name: str | None = None) -> "asyncio.Future[None]":
        """Note a removed version check, once no run of an older version is open."""
        return self._remove(events.VersionChecked, name if name is None else _check_name("check_version", name))

    def _remove(self, kind: type[events.Command], name: str | None) -> "asyncio.Future[None]":
        self._recorder.remove(kind, name, step=self._step)
        done: asyncio.Future[None] = self._recorder.loop.create_future()
        done.set_result(None)
        return done


def _check_name(verb: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"ctx.removed.{verb}: name must be a non-empty string, got {name!r}")
    return name
