-- Everything that an engine keeps, in tables that a person can read.
--
-- An instance is a row with a log (events), an inbox and its activities. Moments are milliseconds since 1970. A lease is
-- (lease_owner, leased_until); its epoch tells it from every earlier one. An expired lease is offered to other workers,
-- but its holder may use it until another worker claims the row. A position orders the rows of a table.

CREATE TABLE instances (
    position       INTEGER PRIMARY KEY,         -- the order of executions, also of one entity
    execution_id   TEXT NOT NULL UNIQUE,
    entity_id      TEXT NOT NULL,
    run_id         TEXT NOT NULL,
    tree_id        TEXT NOT NULL,
    generation     INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    kind           TEXT NOT NULL,               -- which brain advances it
    name           TEXT NOT NULL,
    queue          TEXT NOT NULL,
    status         TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    closed_at      INTEGER,                     -- NULL while it is open
    deactivated    INTEGER NOT NULL DEFAULT 0,
    last_seq       INTEGER NOT NULL,
    wake_at        INTEGER,                     -- the earliest deadline of its timers and listeners, or when it begins
    tags           TEXT NOT NULL DEFAULT '{}',  -- as one JSON object; instance_tags has them as rows
    parked         TEXT,                        -- the diagnosis of a divergence
    dead_letter    TEXT,                        -- why it is no longer handed out
    ready          INTEGER NOT NULL DEFAULT 1,  -- 0, or since when it is ready, in microseconds since 1970;
                                                -- always 0 while its status is 'scheduled': then only wake_at counts
    wake           INTEGER NOT NULL DEFAULT 0,  -- raised by every entry of the inbox
    epoch          INTEGER NOT NULL DEFAULT 0,
    lease_owner    TEXT,
    leased_until   INTEGER,
    deliveries     INTEGER NOT NULL DEFAULT 0,  -- since the last commit
    last_failure   TEXT NOT NULL DEFAULT '',
    paused         TEXT,                        -- 'alone' or with its 'tree', whatever its status
    parent         TEXT,                        -- the call that began it, as one JSON object
    parent_id      TEXT,                        -- the parent's entity, and the key that retries and continuations share
    first_run      TEXT NOT NULL,               -- of its entity, for a child of its call: retries and continuations share it
    signal_schemas TEXT,                        -- what its code accepts, by the names of signals; NULL: anything
    failure        TEXT                         -- the type name of the failure that closed it
) STRICT;

CREATE UNIQUE INDEX instances_open ON instances (entity_id) WHERE closed_at IS NULL;  -- at most one open execution
CREATE INDEX instances_entity ON instances (entity_id, position);
CREATE INDEX instances_run ON instances (entity_id, run_id, position);
CREATE INDEX instances_first_run ON instances (entity_id, first_run, position);
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

CREATE TABLE instance_tags (                    -- the tags of instances, to list those with a tag
    name         TEXT NOT NULL,
    value        TEXT NOT NULL,
    created_at   INTEGER NOT NULL,              -- of the instance
    execution_id TEXT NOT NULL,
    PRIMARY KEY (name, value, created_at DESC, execution_id DESC)
) STRICT, WITHOUT ROWID;

CREATE INDEX instance_tags_instance ON instance_tags (execution_id);

CREATE TABLE tried (                            -- workers whose code did not fit a parked instance
    execution_id TEXT NOT NULL,
    worker       TEXT NOT NULL,
    PRIMARY KEY (execution_id, worker)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    position     INTEGER PRIMARY KEY,           -- the order of commits, which the feed follows; see 0003
    execution_id TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    forgotten    BLOB,                          -- the location it is kept under, as bytes that sort as locations do;
                                                -- NULL: it is active
    body         TEXT NOT NULL                  -- the event as one JSON object
) STRICT;

CREATE UNIQUE INDEX events_log ON events (execution_id, seq);
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
    ref          INTEGER NOT NULL,              -- the command that scheduled it
    queue        TEXT NOT NULL,
    request      TEXT NOT NULL,                 -- what to run, as one JSON object
    visible_at   INTEGER NOT NULL,              -- when the attempt may begin
    available_at INTEGER,                       -- when it may be claimed: at visible_at, or when its lease expires;
                                                -- NULL: it is a dead letter
    attempt      INTEGER NOT NULL DEFAULT 1,
    epoch        INTEGER NOT NULL DEFAULT 0,
    lease_owner  TEXT,
    deliveries   INTEGER NOT NULL DEFAULT 0,    -- of this attempt, without an answer
    dead_letter  TEXT,                          -- why it is no longer handed out
    details      TEXT,                          -- of the last heartbeat, for the next attempt
    heartbeat_at INTEGER,                       -- when an attempt last sent a heartbeat
    PRIMARY KEY (execution_id, ref)
) STRICT, WITHOUT ROWID;

CREATE INDEX activities_available ON activities (queue, available_at);

CREATE TABLE promises (
    position     INTEGER PRIMARY KEY AUTOINCREMENT,
    promise_id   TEXT NOT NULL UNIQUE,
    execution_id TEXT NOT NULL,
    name         TEXT NOT NULL,
    settled      INTEGER NOT NULL DEFAULT 0,
    schema       TEXT NOT NULL                  -- of its value
) STRICT;

CREATE INDEX promises_instance ON promises (execution_id, name);

CREATE TABLE answers (                          -- of closed children to their parents
    execution_id TEXT PRIMARY KEY,
    body         TEXT NOT NULL                  -- the event, as JSON
) STRICT, WITHOUT ROWID;

CREATE TABLE queries (                          -- for workers that have the code, and their results
    position     INTEGER PRIMARY KEY AUTOINCREMENT,
    query_id     TEXT NOT NULL UNIQUE,
    entity_id    TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    queue        TEXT NOT NULL,
    name         TEXT NOT NULL,
    input        TEXT NOT NULL,
    until        INTEGER NOT NULL,              -- when it expires, with its result
    leased_until INTEGER NOT NULL DEFAULT 0,
    completed    INTEGER NOT NULL DEFAULT 0,
    result       TEXT,
    failure      TEXT
) STRICT;

CREATE TABLE messages (                         -- publications of the last minute
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    topic        TEXT NOT NULL,
    at           INTEGER NOT NULL,
    body         TEXT NOT NULL
) STRICT;

CREATE INDEX messages_topic ON messages (topic, number);
CREATE INDEX messages_age ON messages (at);

CREATE TABLE workers (
    worker_id    TEXT PRIMARY KEY,
    owner        TEXT NOT NULL,                 -- the opening of the store by which it was announced
    body         TEXT NOT NULL,                 -- host, build, queues and slots, as one JSON object
    started_at   INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE stored_values (                    -- small values by key, such as the secret of the store
    key          TEXT PRIMARY KEY,
    value        BLOB NOT NULL,
    expires_at   INTEGER                        -- NULL: never
) STRICT, WITHOUT ROWID;

CREATE INDEX stored_values_expiry ON stored_values (expires_at) WHERE expires_at IS NOT NULL;
