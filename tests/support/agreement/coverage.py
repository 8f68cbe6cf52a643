"""Every verb of a store, with every kind of answer that it has: what the stories of a run must come to."""

from collections import Counter
from typing import Any

from resurgam.store import records as r

EXPECTED = frozenset(
    {
        *("create: created", "create: claimed", "create: committed", "create: exists"),
        *("deliver: delivered", "deliver: claimed", "deliver: missing", "deliver: ended", "deliver: settled"),
        "deliver: outdated",
        *("revive: revived", "revive: revived nothing", "revive: missing"),
        *("claim: claims", "claim: nothing"),
        *("commit: committed", "commit: committed with tasks", "commit: committed with an inbox"),
        *("commit: covered tasks", "commit: tasks with leases"),
        *("commit: the log is elsewhere", "commit: the lease is lost", "commit: there is no such instance"),
        "commit: unseen entries in the inbox overtake this strict commit",
        *("extend: extended", "extend: extended with an inbox", "extend: the lease is lost"),
        *("extend: there is no such instance", "extend: the activity is answered or withdrawn"),
        "extend: the lease of the activity is lost",
        *("release: released", "release: the lease is lost", "release: there is no such instance"),
        *("release: the activity is answered or withdrawn", "release: the lease of the activity is lost"),
        *("claim_activities: claims", "claim_activities: nothing"),
        *("complete_activities: accepted", "complete_activities: the activity is answered or withdrawn"),
        *("complete_activities: the lease of the activity is lost",),
        "complete_activities: the activity is at another attempt",
        *("purge: purged", "purge: missing", "purge: unfinished"),
        *("queries.submit: submitted", "queries.submit: missing", "queries.claim: claims", "queries.claim: nothing"),
        *("queries.result: result", "queries.result: none"),
        *("transfer.adopt: adopted", "transfer.adopt: adopted again", "transfer.adopt: exists"),
        *("transfer.remove: removed", "transfer.remove: changed", "transfer.adopt: restored"),
        *("transfer.reserve: reserved", "transfer.reserve: changed"),
        *("transfer.archive: archived", "transfer.archive: changed"),
        *("values.get: value", "values.get: none", "values.put_if_absent: stored", "values.put_if_absent: kept"),
        *("workers.announce: workers", "workers.list: workers", "workers.list: nothing"),
        *("inspector.get: instance", "inspector.get: none", "inspector.promise: promise", "inspector.promise: none"),
        *("dead letter: instance", "dead letter: activity", "parked", "paused", "forgotten", "archived"),
        *("start", "start behind an entry"),
        *(f"wait {name}: {there}" for name in ("Work", "Closed", "LogGrown", "Published") for there in (True, False)),
        *(
            f"wait {name}: {there}"
            for name in ("QueryAnswered", "InboxChanged", "FeedGrown")
            for there in (True, False)
        ),
    }
)


class Coverage:
    """The kinds of answers that have occurred."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    @property
    def missing(self) -> list[str]:
        return sorted(EXPECTED - self.seen.keys())

    def note(self, verb: str, *kinds: str) -> None:
        for kind in kinds:
            self.seen[f"{verb}: {kind}"] += 1

    def note_answer(self, verb: str, answer: Any) -> None:
        self.note(verb, *_kinds(answer))


def _kinds(answer: Any) -> tuple[str, ...]:
    kinds = (type(answer).__name__.lower(),)
    match answer:
        case r.Refused():
            kinds = ("the log is elsewhere" if answer.reason.startswith("the log is at") else answer.reason,)
        case r.Created() if answer.committed is not None:
            kinds = ("committed",)
        case r.Created() | r.Delivered() if answer.claim is not None:
            kinds = ("claimed",)
        case r.Committed():
            kinds = _committed(answer)
        case r.Extended() if answer.inbox:
            kinds = ("extended", "extended with an inbox")
        case r.Revived() if not answer.count:
            kinds = ("revived nothing",)
        case r.Adopted() if not any(arrival.new for arrival in answer.arrivals):
            kinds = ("adopted again",)
    return kinds


def _committed(answer: r.Committed) -> tuple[str, ...]:
    kinds = ["committed"]
    if answer.inbox:
        kinds.append("committed with an inbox")
    if answer.tasks:
        kinds.append("committed with tasks")
    if any(task.epoch == 0 for task in answer.tasks):
        kinds.append("covered tasks")
    if any(task.epoch for task in answer.tasks):
        kinds.append("tasks with leases")
    return tuple(kinds)
