-- Everything that an engine keeps, in tables that a person can read.
--
-- An instance is a row in instances, which identifies and lists it, and one in states, which every commit changes; it has a
-- log (events), an inbox and its activities. Moments are milliseconds since 1970; those by which work is offered are
-- microseconds. A lease is (owner, worker, leased_until); its epoch tells it from every earlier one. An expired lease is
-- offered to other workers, but its holder may use it until another worker claims the row. A position orders the rows of a
-- table. JSON is kept as text, exactly as it came. Ids are compared byte by byte.
--
-- Who changes an execution holds the lock on its row in states. A row of a table without one belongs to an execution that is
-- locked, or is changed by one statement.

CREATE SEQUENCE {schema}.turns CACHE 1;         -- the order of what becomes claimable in the same microsecond

CREATE TABLE {schema}.instances (               -- changes with its status only
    execution_id   text COLLATE "C" PRIMARY KEY,
    position       bigint GENERATED ALWAYS AS IDENTITY,  -- the order of executions, also of one entity
    entity_id      text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    tree_id        text COLLATE "C" NOT NULL,
    generation     bigint NOT NULL,
    attempt        bigint NOT NULL,
    kind           text COLLATE "C" NOT NULL,   -- which brain advances it
    name           text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    status         text COLLATE "C" NOT NULL,   -- as others see it: a pause hides the one in states
    created_at     bigint NOT NULL,
    closed_at      bigint,                      -- NULL while it is open
    deactivated    boolean NOT NULL DEFAULT false,
    tags           text NOT NULL DEFAULT '{}',  -- as one JSON object; instance_tags has them as rows
    parent         text,                        -- the call that began it, as one JSON object
    parent_id      text COLLATE "C",            -- the parent's entity
    parent_key     text COLLATE "C",            -- of the call, which retries and continuations share
    first_run      text COLLATE "C" NOT NULL,   -- of its entity, for a child of its call: retries and continuations share it
    signal_schemas text,                        -- what its code accepts, by the names of signals; NULL: anything
    failure        text COLLATE "C"             -- the type name of the failure that closed it
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX instances_open ON {schema}.instances (entity_id) WHERE closed_at IS NULL;  -- at most one open execution
CREATE INDEX instances_entity ON {schema}.instances (entity_id, position);
CREATE INDEX instances_listed ON {schema}.instances (created_at DESC, execution_id DESC);
CREATE INDEX instances_status ON {schema}.instances (status, created_at DESC, execution_id DESC)
    WHERE status NOT IN ('running', 'completed');
CREATE INDEX instances_children ON {schema}.instances (parent_id, created_at DESC, execution_id DESC)
    WHERE parent_id IS NOT NULL;
CREATE INDEX instances_tree ON {schema}.instances (tree_id, created_at DESC, execution_id DESC);
CREATE INDEX instances_failed ON {schema}.instances (failure, created_at DESC, execution_id DESC) WHERE failure IS NOT NULL;
CREATE INDEX instances_ended ON {schema}.instances (closed_at, execution_id) WHERE deactivated;

CREATE TABLE {schema}.states (                  -- a step changes no column of it that has an index; half of a page is free, so
                                                -- that one transaction can change all rows on it without leaving it
    execution_id text COLLATE "C" PRIMARY KEY,
    entity_id    text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    status       text COLLATE "C" NOT NULL,     -- whether it is paused or not
    last_seq     bigint NOT NULL,
    epoch        bigint NOT NULL DEFAULT 0,
    commits      bigint NOT NULL DEFAULT 0,     -- raised by every commit
    feed_key     bigint NOT NULL DEFAULT 0,     -- of the last event
    wake         bigint NOT NULL DEFAULT 0,     -- raised by every entry of the inbox
    wake_at      bigint,                        -- the earliest deadline of its timers and listeners, or when it begins
    ready_at     bigint,                        -- since when it is ready, in microseconds; NULL: it is not. Always NULL while
                                                -- it is scheduled or leased, never while it is parked and free
    turn         bigint NOT NULL DEFAULT 0,     -- its place among those that became ready in the same microsecond
    owner        text COLLATE "C",              -- the open store that holds the lease
    worker       text COLLATE "C",
    claim        text COLLATE "C",              -- the token of the claim, by which a lost answer is found again
    leased_until bigint,
    deliveries   bigint NOT NULL DEFAULT 0,     -- since the last commit
    last_failure text NOT NULL DEFAULT '',
    paused       text COLLATE "C",              -- 'alone' or with its 'tree', whatever its status
    parked       text,                          -- the diagnosis of a divergence
    dead_letter  text,                          -- why it is no longer handed out
    covered      text,                          -- the activities that the lease covers, as a JSON array of arrays of ref, queue
                                                -- and request as text; NULL: none, or no lease
    offered_at   bigint GENERATED ALWAYS AS (   -- since when it can be claimed, in microseconds; NULL: it is not offered. A
                                                -- closed one that is ready is: its code must see what came afterwards
        CASE
            WHEN paused IS NOT NULL OR dead_letter IS NOT NULL THEN NULL
            WHEN leased_until IS NULL THEN least(ready_at, wake_at * 1000)
            WHEN status <> 'scheduled' THEN leased_until * 1000
            WHEN wake_at IS NOT NULL THEN greatest(leased_until, wake_at) * 1000  -- its code may not run before its moment
        END
    ) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

CREATE INDEX states_offered ON {schema}.states (queue, offered_at, turn)
    WHERE offered_at IS NOT NULL AND status <> 'diverged';
CREATE INDEX states_parked ON {schema}.states (queue, offered_at, turn)
    WHERE offered_at IS NOT NULL AND status = 'diverged';
CREATE INDEX states_dead ON {schema}.states (execution_id) WHERE dead_letter IS NOT NULL;

CREATE INDEX states_leases ON {schema}.states (owner, claim) WHERE owner IS NOT NULL;

CREATE TABLE {schema}.instance_tags (           -- the tags of instances, to list those with a tag
    name         text COLLATE "C" NOT NULL,
    value        text COLLATE "C" NOT NULL,
    created_at   bigint NOT NULL,               -- of the instance
    execution_id text COLLATE "C" NOT NULL
);

CREATE UNIQUE INDEX instance_tags_listed ON {schema}.instance_tags (name, value, created_at DESC, execution_id DESC);
CREATE INDEX instance_tags_instance ON {schema}.instance_tags (execution_id);

CREATE TABLE {schema}.tried (                   -- workers whose code did not fit a parked instance
    execution_id text COLLATE "C" NOT NULL,
    worker       text COLLATE "C" NOT NULL,
    PRIMARY KEY (execution_id, worker)
);

CREATE TABLE {schema}.events (
    execution_id text COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    position     bigint GENERATED ALWAYS AS IDENTITY,  -- the order within a transaction
    feed_key     bigint NOT NULL,               -- the order of transactions: the feed follows (feed_key, position)
    type         text COLLATE "C" NOT NULL,
    forgotten    bytea,                         -- the location it is kept under, as bytes that sort as locations do; NULL: it
                                                -- is active
    body         text NOT NULL,                 -- the event as one JSON object
    PRIMARY KEY (execution_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2);

CREATE INDEX events_feed ON {schema}.events (feed_key, position);
CREATE INDEX events_forgotten ON {schema}.events (execution_id, forgotten) WHERE forgotten IS NOT NULL;

CREATE TABLE {schema}.inbox (
    execution_id text COLLATE "C" NOT NULL,
    wake         bigint NOT NULL,               -- the counter of the instance when it came, which is its id
    type         text COLLATE "C" NOT NULL,
    body         text NOT NULL,
    overtakes    boolean NOT NULL,              -- whether a strict commit must have seen it
    promise_id   text COLLATE "C",              -- of the promise that it settles
    PRIMARY KEY (execution_id, wake)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

CREATE TABLE {schema}.activities (
    execution_id text COLLATE "C" NOT NULL,
    ref          bigint NOT NULL,               -- the command that scheduled it
    queue        text COLLATE "C" NOT NULL,
    request      text NOT NULL,                 -- what to run, as one JSON object
    visible_at   bigint NOT NULL,               -- when the attempt may begin
    ready_at     bigint NOT NULL,               -- since when it can be claimed if it is free, in microseconds
    turn         bigint NOT NULL,               -- its place among those of the same microsecond
    attempt      bigint NOT NULL DEFAULT 1,
    epoch        bigint NOT NULL DEFAULT 0,
    owner        text COLLATE "C",
    worker       text COLLATE "C",
    claim        text COLLATE "C",
    leased_until bigint,
    deliveries   bigint NOT NULL DEFAULT 0,     -- of this attempt, without an answer
    dead_letter  text,                          -- why it is no longer handed out
    aside        boolean NOT NULL DEFAULT false,  -- its instance is paused
    details      text,                          -- of the last heartbeat, for the next attempt
    heartbeat_at bigint,                        -- when an attempt last sent a heartbeat
    offered_at   bigint GENERATED ALWAYS AS (   -- since when it can be claimed, in microseconds; NULL: it is not offered
        CASE
            WHEN aside OR dead_letter IS NOT NULL THEN NULL
            WHEN leased_until IS NOT NULL THEN leased_until * 1000
            ELSE ready_at
        END
    ) STORED,
    PRIMARY KEY (execution_id, ref)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

CREATE INDEX activities_offered ON {schema}.activities (queue, offered_at, turn) WHERE offered_at IS NOT NULL;
CREATE INDEX activities_leases ON {schema}.activities (owner, claim) WHERE owner IS NOT NULL;
CREATE INDEX activities_dead ON {schema}.activities (execution_id) WHERE dead_letter IS NOT NULL;

CREATE TABLE {schema}.announced (               -- when something in a queue can be claimed, as idle workers last heard of it
    queue        text COLLATE "C" PRIMARY KEY,
    moment       bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {schema}.promises (
    promise_id   text COLLATE "C" PRIMARY KEY,
    position     bigint GENERATED BY DEFAULT AS IDENTITY,
    entity_id    text COLLATE "C" NOT NULL,     -- of the execution, and of those that take it over
    execution_id text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    settled      boolean NOT NULL DEFAULT false,
    schema       text NOT NULL                  -- of its value
);

CREATE INDEX promises_instance ON {schema}.promises (execution_id, name, position);

CREATE TABLE {schema}.answers (                 -- of closed children to their parents
    execution_id text COLLATE "C" PRIMARY KEY,
    type         text COLLATE "C" NOT NULL,
    body         text NOT NULL                  -- the event, as JSON
);

CREATE TABLE {schema}.queries (                 -- for workers that have the code, and their results
    query_id     text COLLATE "C" PRIMARY KEY,
    position     bigint GENERATED ALWAYS AS IDENTITY,
    entity_id    text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    name         text NOT NULL,
    input        text NOT NULL,
    until        bigint NOT NULL,               -- when it expires, with its result
    leased_until bigint NOT NULL DEFAULT 0,
    completed    boolean NOT NULL DEFAULT false,
    result       text,
    failure      text
);

CREATE INDEX queries_waiting ON {schema}.queries (queue, position) WHERE NOT completed;
CREATE INDEX queries_instance ON {schema}.queries (execution_id);
CREATE INDEX queries_expiry ON {schema}.queries (until);

CREATE TABLE {schema}.topics (                  -- who publishes holds the row: numbers are committed in their order
    topic        text COLLATE "C" PRIMARY KEY,
    number       bigint NOT NULL                -- of the last message
) WITH (fillfactor = 70);

CREATE TABLE {schema}.messages (                -- publications of the last minute
    topic        text COLLATE "C" NOT NULL,
    number       bigint NOT NULL,
    at           bigint NOT NULL,
    body         text NOT NULL,
    PRIMARY KEY (topic, number)
);

CREATE INDEX messages_age ON {schema}.messages (at);

CREATE TABLE {schema}.workers (
    worker_id    text COLLATE "C" PRIMARY KEY,
    owner        text COLLATE "C" NOT NULL,     -- the opening of the store by which it was announced
    body         text NOT NULL,                 -- host, build, queues and slots, as one JSON object
    started_at   bigint NOT NULL,
    seen_at      bigint NOT NULL,
    expires_at   bigint NOT NULL
);

CREATE TABLE {schema}.stored_values (           -- small values by key, such as the secret of the store
    key          text COLLATE "C" PRIMARY KEY,
    value        bytea NOT NULL,
    expires_at   bigint                         -- NULL: never
);

CREATE INDEX stored_values_expiry ON {schema}.stored_values (expires_at) WHERE expires_at IS NOT NULL;

-- What is added to the ids of transactions in the feed, so that its keys still rise in a server whose transaction ids are lower
-- than those of the server that the data came from.
CREATE FUNCTION {schema}.feed_offset() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 0::bigint';

CREATE TABLE {schema}.calls (                   -- the last call on each connection: a lost answer is read here
    owner        text COLLATE "C" NOT NULL,     -- the open store
    connection   integer NOT NULL,
    number       bigint NOT NULL,               -- of the call
    notices      text[],
    answers      jsonb,                         -- NULL: the call was given up before it was done; JSON's null: done, and deleted
    called_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, connection)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {schema}.meta (                    -- one row
    version      integer NOT NULL,              -- the number of the last migration
    oldest       integer NOT NULL,              -- the number of migrations that a version of Resurgam must know to use this
    id           text NOT NULL                  -- of the store
);
