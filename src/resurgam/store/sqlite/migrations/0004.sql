-- A page of any list is read from an index that is in its order, and a complete execution may be archived.
--
-- The status of a list is the one that is shown: a pause hides it. To list the instances of a kind or a name with any
-- status, or those of a status with any kind, the few ranges of the index are merged.

ALTER TABLE instances ADD COLUMN archived TEXT;  -- the URL of the file that holds its log; NULL: the log is here

CREATE INDEX instances_kind ON instances
    (kind, CASE WHEN paused IS NULL THEN status ELSE 'paused' END, created_at DESC, execution_id DESC);
CREATE INDEX instances_named ON instances
    (name, CASE WHEN paused IS NULL THEN status ELSE 'paused' END, created_at DESC, execution_id DESC);

DROP INDEX instances_ended;
CREATE INDEX instances_ended ON instances (status, closed_at, execution_id) WHERE deactivated AND archived IS NULL;
CREATE INDEX instances_ended_named ON instances (name, status, closed_at, execution_id)
    WHERE deactivated AND archived IS NULL;
CREATE INDEX instances_archived ON instances (status, closed_at, execution_id) WHERE archived IS NOT NULL;
CREATE INDEX instances_archived_named ON instances (name, status, closed_at, execution_id) WHERE archived IS NOT NULL;

CREATE INDEX instances_dead ON instances (execution_id) WHERE dead_letter IS NOT NULL;
