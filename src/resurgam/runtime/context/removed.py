"""`ctx.removed`: calls that are no longer in the code, where they were.

On a history that holds the call it is skipped, with all that stands below it; on one that ends before it a mark is
left, so that later runs of the same code find it; where the history goes on with something else it has no effect.
"""

import asyncio

from resurgam.core import event as events
from resurgam.core.errors import DefinitionError
from resurgam.runtime.definitions.definition import Activity, Workflow
from resurgam.runtime.matching.recorder import Recorder


class Removed:
    """The verbs of a context, for calls that were removed. Each is awaited, and gives nothing."""

    def __init__(self, recorder: Recorder, step: int | None) -> None:
        self._recorder = recorder
        self._step = step

    def activity(self, activity: Activity[..., object] | str) -> "asyncio.Future[None]":
        """An activity that was run here, by its function or its name."""
        name = activity.name if isinstance(activity, Activity) else activity
        return self._gone(events.ActivityScheduled, _named("activity", name))

    def run(self, name: str) -> "asyncio.Future[None]":
        """A side effect that was run here, by the name of its function or the one it was given."""
        return self._gone(events.OperationStarted, _named("run", getattr(name, "__name__", name)))

    def sleep(self) -> "asyncio.Future[None]":
        """A sleep, until a moment or for a while, or a timeout."""
        return self._gone(events.TimerStarted, None)

    def listen(self, *names: str) -> "asyncio.Future[None]":
        """A listener, by the names it asked for; without any, whatever it asked for."""
        return self._gone(events.ListenStarted, ", ".join(_named("listen", name) for name in names) or None)

    def set(self, key: str) -> "asyncio.Future[None]":
        """A value that was put into the durable state."""
        return self._gone(events.StateSet, _named("set", key))

    def clear(self, key: str) -> "asyncio.Future[None]":
        """A value that was dropped from the durable state."""
        return self._gone(events.StateCleared, _named("clear", key))

    def get(self, key: str) -> "asyncio.Future[None]":
        """A read of the durable state beside a loop that forgets, which is the only place where reads are recorded."""
        return self._gone(events.StateRead, _named("get", key))

    def branch(self, name: str | None = None) -> "asyncio.Future[None]":
        """A branch or a task, with all that it did."""
        return self._gone(events.BranchStarted, name if name is None else _named("branch", name))

    map = branch

    def race(self) -> "asyncio.Future[None]":
        """A race, with what its competitors did below it."""
        return self._gone(events.RaceStarted, None)

    def loop(self) -> "asyncio.Future[None]":
        """A loop, with all its iterations."""
        return self._gone(events.LoopStarted, None)

    def workflow(self, workflow: Workflow[..., object] | str) -> "asyncio.Future[None]":
        """A child that was begun here, by its function or its name; one that is under way is left to itself."""
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        return self._gone(events.ChildScheduled, _named("workflow", name))

    def promise(self, name: str) -> "asyncio.Future[None]":
        """A promise, by its name."""
        return self._gone(events.PromiseCreated, _named("promise", name))

    def resolve(self, promise_id: str) -> "asyncio.Future[None]":
        """The settlement of a promise, by its id."""
        return self._gone(events.PromiseSettled, _named("resolve", promise_id))

    def signal(self, name: str) -> "asyncio.Future[None]":
        """A signal that was sent to another workflow, by its name."""
        return self._gone(events.SignalSent, _named("signal", name))

    def publish(self, topic: str) -> "asyncio.Future[None]":
        """A message that was published, by its topic."""
        return self._gone(events.MessagePublished, _named("publish", topic))

    def step(self, activity: Activity[..., object] | str) -> "asyncio.Future[None]":
        """A step of a saga, by the activity that did it; nothing takes it back any more."""
        name = activity.name if isinstance(activity, Activity) else activity
        return self._gone(events.SagaStepRegistered, _named("step", name))

    def check_version(self, name: str | None = None) -> "asyncio.Future[None]":
        """A version check, once no run of an older version is open any more."""
        return self._gone(events.VersionChecked, name if name is None else _named("check_version", name))

    def _gone(self, kind: type[events.Command], name: str | None) -> "asyncio.Future[None]":
        self._recorder.remove(kind, name, step=self._step)
        done: asyncio.Future[None] = self._recorder.loop.create_future()
        done.set_result(None)
        return done


def _named(verb: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"ctx.removed.{verb}({name!r}): say which, by its name")
    return name
