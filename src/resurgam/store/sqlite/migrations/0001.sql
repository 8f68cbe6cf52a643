-- Everything an engine keeps, in tables that a person can read.
--
-- An instance is a row with a log (events), an inbox and the activities it wants. Moments are milliseconds since 1970.
-- A lease is (lease_owner, leased_until) and is told from every earlier one by its epoch. One that has run out is
-- offered to others, but its holder may use it until somebody takes it.

CREATE TABLE instances (
    place         INTEGER PRIMARY KEY,          -- the order in which executions were created
    execution_id  TEXT NOT NULL UNIQUE,
    entity_id     TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    tree_id       TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    kind          TEXT NOT NULL,                -- which brain advances it
    name          TEXT NOT NULL,
    queue         TEXT NOT NULL,
    status        TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    closed_at     INTEGER,
    deactivated   INTEGER NOT NULL DEFAULT 0,
    last_seq      INTEGER NOT NULL,
    wake_at       INTEGER,                      -- the earliest deadline of its timers and listeners, or when it begins
    tags          TEXT NOT NULL DEFAULT '{}',
    parked        TEXT,                         -- why it diverged
    dead_letter   TEXT,                                -- why it is no longer handed out
    ready         INTEGER NOT NULL DEFAULT 1,   -- 0, or its turn: since when it is ready, in microseconds since 1970;
                                                -- always 0 while its status is 'scheduled': then only wake_at counts
    wake          INTEGER NOT NULL DEFAULT 0,   -- raised by whatever enters the inbox
    epoch         INTEGER NOT NULL DEFAULT 0,
    lease_owner   TEXT,
    leased_until  INTEGER,
    deliveries    INTEGER NOT NULL DEFAULT 0,   -- since the last commit
    last_failure  TEXT NOT NULL DEFAULT '',
    paused        TEXT,                         -- halted, 'alone' or with its 'tree'; whatever its status is
    parent        TEXT,                         -- the call that began it, as one JSON object
    parent_id     TEXT,                         -- of it the entity, and the key that retries and continuations share
    parent_key    TEXT,
    signal_schemas TEXT,                        -- schemas of what its code takes, by the names of signals; NULL: anything
    failure       TEXT                          -- the type by which it failed
) STRICT;

CREATE INDEX instances_entity ON instances (entity_id, place);
CREATE INDEX instances_run ON instances (entity_id, run_id, place);
CREATE INDEX instances_listed ON instances (created_at DESC, execution_id DESC);
CREATE INDEX instances_children ON instances (parent_id, created_at DESC, execution_id DESC)
    WHERE parent_id IS NOT NULL;
CREATE INDEX instances_tree ON instances (tree_id, created_at DESC, execution_id DESC);
CREATE INDEX instances_failed ON instances (failure, created_at DESC, execution_id DESC) WHERE failure IS NOT NULL;
CREATE INDEX instances_ready ON instances (queue, ready)
    WHERE ready AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL;
CREATE INDEX instances_waking ON instances (queue, wake_at)
    WHERE wake_at IS NOT NULL AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL;
CREATE INDEX instances_leased ON instances (leased_until) WHERE leased_until IS NOT NULL;
CREATE INDEX instances_parked ON instances (queue) WHERE status = 'diverged' AND dead_letter IS NULL;
CREATE INDEX instances_ended ON instances (closed_at, execution_id) WHERE deactivated;

CREATE TABLE tried (                            -- which starts of workers have tried a parked instance in vain
    execution_id TEXT NOT NULL,
    worker       TEXT NOT NULL,
    PRIMARY KEY (execution_id, worker)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    execution_id TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    forgotten    BLOB,                          -- the place it is kept under, as bytes that sort as places do; NULL: active
    body         TEXT NOT NULL,                 -- the event as one JSON object
    PRIMARY KEY (execution_id, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX events_forgotten ON events (execution_id, forgotten) WHERE forgotten IS NOT NULL;

CREATE TABLE inbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id TEXT NOT NULL,
    wake         INTEGER NOT NULL,              -- the counter of the instance when it came
    body         TEXT NOT NULL
) STRICT;

CREATE INDEX inbox_instance ON inbox (execution_id, id);

CREATE TABLE activities (
    execution_id TEXT NOT NULL,
    ref          INTEGER NOT NULL,              -- the command that asked for it
    queue        TEXT NOT NULL,
    request      TEXT NOT NULL,                 -- what to run, as one JSON object
    visible_at   INTEGER NOT NULL,              -- when it may be begun
    available_at INTEGER,                       -- when it may be claimed: then, or when its lease runs out; never if dead
    attempt      INTEGER NOT NULL DEFAULT 1,
    epoch        INTEGER NOT NULL DEFAULT 0,
    lease_owner  TEXT,
    deliveries   INTEGER NOT NULL DEFAULT 0,    -- of this attempt, without an answer
    dead_letter  TEXT,
    details      TEXT,                          -- what an attempt last told, for the next one
    heartbeat_at INTEGER,                       -- when an attempt last sent a heartbeat
    PRIMARY KEY (execution_id, ref)
) STRICT, WITHOUT ROWID;

CREATE INDEX activities_available ON activities (queue, available_at);

CREATE TABLE promises (
    place        INTEGER PRIMARY KEY,           -- the order in which they were made
    promise_id   TEXT NOT NULL UNIQUE,
    execution_id TEXT NOT NULL,
    name         TEXT NOT NULL,
    settled      INTEGER NOT NULL DEFAULT 0,
    schema       TEXT NOT NULL                  -- of the value that it takes
) STRICT;

CREATE INDEX promises_instance ON promises (execution_id, name);

CREATE TABLE questions (                        -- to code that whoever asks does not have
    place        INTEGER PRIMARY KEY,
    query_id  TEXT NOT NULL UNIQUE,
    execution_id TEXT NOT NULL,
    queue        TEXT NOT NULL,
    name         TEXT NOT NULL,
    input        TEXT NOT NULL,
    until        INTEGER NOT NULL,              -- when it is given up, with its reply
    leased_until INTEGER NOT NULL DEFAULT 0,
    replied      INTEGER NOT NULL DEFAULT 0,
    result       TEXT,
    failure      TEXT
) STRICT;

CREATE TABLE messages (                         -- what was published in the last minute
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    topic        TEXT NOT NULL,
    at           INTEGER NOT NULL,
    body         TEXT NOT NULL
) STRICT;

CREATE INDEX messages_topic ON messages (topic, number);
CREATE INDEX messages_age ON messages (at);

CREATE TABLE secret (                           -- the one of this store, from which ids are made that nobody can guess
    place        INTEGER PRIMARY KEY CHECK (place = 1),
    value        BLOB NOT NULL
) STRICT;
