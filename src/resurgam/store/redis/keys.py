"""Every key of the Redis store: its name, its type, what it holds.

All keys of a partition begin with ``<prefix>{pNN}:``. The braces are a hash tag, so that a cluster keeps a partition in one
slot. An id is used as it is, always at the end of a key, and is never split off again: what belongs to a key and must be
found from it stands in a field. Moments are milliseconds, except where a score is an *unlock*: microseconds, so that what
becomes claimable within one millisecond keeps its order.
"""

from typing import Final, NamedTuple


class Key(NamedTuple):
    """A kind of key. *name* has its variable part in angle brackets, *fields* are those of a hash or of stream entries."""

    name: str
    type: str
    meaning: str
    fields: tuple[str, ...] = ()


STATE_FIELDS: Final = (
    # What never changes.
    *("entity_id", "run_id", "attempt", "first_run", "parent_key", "kind", "name", "tree_id", "parent", "queue"),
    "created_at",
    # The fence and the log.
    *("epoch", "last_seq", "status", "closed_at", "deactivated", "failure", "parked", "tags", "archived"),
    # The inbox and the lease.
    *("wake", "quiet", "wake_at", "ready", "leased_until", "owner", "worker", "claim", "deliveries"),
    *("last_failure", "paused", "dead_letter", "tried", "promised", "place", "plain"),
)
"""The fields of ``state-<execution id>``; absent is none, 0 or no.

*parent_key* and *parent* are the key of the call that started a child and the entity that made it; *tags* are the
current ones, flat names and values as MessagePack; *parked* is the diagnosis of a divergence; *archived* is the URL of the
file that holds the log of a complete execution; *ready* is 1 if the instance must be claimed; *claim* is the number of the
call that took the lease; *paused* is ``alone`` or ``tree``; *tried* is 1 if ``tried-<execution id>`` exists; *promised*
counts the promises opened so far; *place* is that in the order of the executions of its entity, if they have an index;
*quiet* counts the entries of the inbox that woke nobody; *plain* is 1 while the instance is leased and running, and
nothing about it is unusual.
"""

ACTIVITY_FIELDS: Final = (
    *("execution_id", "ref", "queue", "request", "visible_at", "attempt", "epoch", "deliveries", "leased_until"),
    *("owner", "worker", "claim", "dead_letter", "details", "heartbeat_at", "aside"),
)
"""The fields of ``activity-<execution id>-<ref>``.

*request* and *details* are JSON; *aside* is the unlock of an activity whose instance is paused.
"""

KEYS: Final = (
    Key("meta", "hash", "what was fixed when the store was created; in partition 0", ("partitions", "format", "id")),
    # Executions.
    Key("instances-<execution id>", "string", "the instance as JSON, as it was at its last change of status; read it with"
        " the hash below, which is authoritative"),
    Key("state-<execution id>", "hash", "the fence of an instance, and everything about it that changes", STATE_FIELDS),
    Key("events-<execution id>", "stream", "the log: an entry seq-0 for each event, with its reference in the feed",
        ("type", "body", "reference")),
    Key("forgotten-<execution id>", "hash", "entries that replay does not read: seq to MessagePack of the key of the"
        " location, type, body, reference"),
    Key("pending-<execution id>", "stream", "the inbox: the entry wake-0 raised the wake counter to that number, others came"
        " behind it and woke nobody; overtakes is 1 if a strict commit must have seen it", ("type", "body", "overtakes", "promise_id")),
    Key("schemas-<execution id>", "string", "the schemas of its signals, as JSON"),
    Key("answer-<execution id>", "string", "the answer that a child has sent to its parent: MessagePack of type, body, ..."),
    Key("covered-<execution id>", "string", "the activities that the lease covers: MessagePack of lists of ref, queue,"
        " request"),
    Key("tried-<execution id>", "set", "workers whose code does not fit this run"),
    Key("entities-<entity id>", "list", "the executions of an entity, oldest first"),
    Key("runs-<entity id>", "zset", "the same by their runs, if there are more than a few: two texts that end with the id of"
        " each, with the score 0"),
    # Work.
    Key("ready-<queue>", "zset", "instances by unlock: free ones by when they became ready, leased ones by the end of the"
        " lease"),
    Key("parked-<queue>", "zset", "diverged instances by unlock, for workers that have not tried them"),
    Key("timers", "zset", "free instances that wait, by the moment at which they must wake"),
    Key("activities-<queue>", "zset", "activity ids (execution id, hyphen, ref) by unlock: when they became available, the"
        " moment of the next attempt, or the end of the lease"),
    Key("activity-<execution id>-<ref>", "hash", "an activity without an answer", ACTIVITY_FIELDS),
    Key("work-<execution id>", "set", "the refs of the activities of an execution"),
    Key("queues", "hash", "the queues in use: how many executions and activities name each", ("<queue>",)),
    # Promises.
    Key("promise-<promise id>", "hash", "a promise", ("execution_id", "name", "schema", "settled")),
    Key("promises-<execution id>", "zset", "the open promises of an execution, in the order of opening"),
    Key("settled-<execution id>", "zset", "the settled promises that are kept, by the same numbers"),
    # Order and listing.
    Key("counters", "hash", "feed: the last position; ready: the last unlock that was given out; outbox-<target>: the last"
        " number of an outbox; topics: the number of the last message", ("feed", "ready", "outbox-<target>", "topics")),
    Key("due", "zset", "queues by the moment that was last announced for each"),
    Key("feed", "stream", "the events of all executions in the order of commits: a reference position-count for those that"
        " were appended together, with the position and the seq of the last", ("execution_id", "seq")),
    Key("created", "zset", "all executions by the moment of their creation"),
    Key("by-kind-<kind>", "zset", "the same by kind, except workflows"),
    Key("by-status-<status>", "zset", "the same by the status that is shown"),
    Key("by-name-<name>", "zset", "the same by the name of the workflow"),
    Key("named-<status>-<name>", "zset", "the same by the status that is shown and the name"),
    Key("by-tree-<tree id>", "zset", "the same by tree"),
    Key("by-parent-<entity id>", "zset", "the same by the entity that started them"),
    Key("by-tag-<name>=<value>", "zset", "the same by tag"),
    Key("by-failure-<type>", "zset", "the same by the type of the error that failed them"),
    Key("ended-<status>", "zset", "executions that are complete, by the moment of their end"),
    Key("ended-named-<status>-<name>", "zset", "the same by the name of the workflow too"),
    Key("archived-<status>", "zset", "complete executions whose logs are in an archive, by the moment of their end"),
    Key("archived-named-<status>-<name>", "zset", "the same by the name of the workflow too"),
    Key("dead-instances", "zset", "instances that are dead letters, by the moment at which they became so"),
    Key("dead-activities", "zset", "the same for activities"),
    Key("letters-<execution id>", "hash", "the dead letters among its activities: ref to reason"),
    # Between partitions.
    Key("outbox-<target>", "stream", "effects on another partition: an entry number-0 for each, in MessagePack", ("at", "body")),
    Key("marks", "hash", "the number of the last effect applied from each partition", ("<source>",)),
    Key("unsent", "zset", "partitions whose outbox is not empty, by the moment of the oldest entry"),
    # Topics, queries, values, workers.
    Key("topic-<name>", "stream", "the messages of the last minute on a topic; all topics of a partition are numbered"
        " together", ("at", "body")),
    Key("topics", "zset", "topics with messages, by the moment of the last one"),
    Key("query-<query id>", "hash", "a query until its deadline; task and result are JSON",
        ("task", "queue", "execution_id", "until", "owner", "claim", "result")),
    Key("queries", "zset", "all queries by their deadline"),
    Key("queries-<queue>", "zset", "unanswered queries by unlock"),
    Key("asked-<execution id>", "set", "the queries of an execution"),
    Key("value-<key>", "string", "a small value"),
    Key("values", "zset", "the keys of values that expire, by the moment at which they do"),
    Key("workers", "zset", "workers by the moment of their start; in partition 0"),
    Key("worker-<worker id>", "hash", "a worker; body is what it announces of itself, as JSON",
        ("body", "owner", "started_at", "seen_at", "until")),
)  # fmt: skip


def partition_prefix(prefix: str, partition: int) -> str:
    """Return what all keys of a partition begin with."""
    return f"{prefix}{{p{partition:02d}}}:"
