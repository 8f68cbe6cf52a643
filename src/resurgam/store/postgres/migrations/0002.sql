-- Indexes for lists by every filter, and for executions whose log is in an archive.
-- oldest: 1
--
-- A list walks one index in the order of the list. Each index begins with what a filter names, and no two begin alike, so that
-- only one of them has the order that a statement asks for (`lists`): the server cannot take another, whatever it expects of
-- the values. A list of everything merges the ranges of all statuses. What older versions ask for still works, but lists without
-- a filter and passes of retention take longer there. Of a name only the beginning is in an index: an entry has little room.

-- All locks at once: who waits for a second one while others wait for the first would be stopped as a deadlock.
LOCK TABLE {schema}.instances IN ACCESS EXCLUSIVE MODE;

ALTER TABLE {schema}.instances ADD COLUMN archived text;  -- the URL of the file that has its log; NULL: its log is here

CREATE INDEX instances_shown ON {schema}.instances (status, created_at DESC, execution_id DESC);
CREATE INDEX instances_named ON {schema}.instances ((left(name, 200) || ' ' || status), created_at DESC, execution_id DESC);
CREATE INDEX instances_kind ON {schema}.instances (kind, created_at DESC, execution_id DESC) WHERE kind <> 'workflow';

CREATE INDEX instances_complete ON {schema}.instances (status, closed_at, execution_id)
    WHERE deactivated AND archived IS NULL;
CREATE INDEX instances_complete_named ON {schema}.instances ((left(name, 200) || ' ' || status), closed_at, execution_id)
    WHERE deactivated AND archived IS NULL;
CREATE INDEX instances_archived ON {schema}.instances (status, closed_at, execution_id) WHERE archived IS NOT NULL;
CREATE INDEX instances_archived_named ON {schema}.instances ((left(name, 200) || ' ' || status), closed_at, execution_id)
    WHERE archived IS NOT NULL;

DROP INDEX {schema}.instances_listed;
DROP INDEX {schema}.instances_status;
DROP INDEX {schema}.instances_ended;
