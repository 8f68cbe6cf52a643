-- Rows: an execution has one in instances, which changes with its status and its tags only, and one in states.
-- tables: reads instances; locks and writes states

-- Whether an execution with this status is closed.
CREATE FUNCTION {schema}.instances_is_closed_{code}(status text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
SELECT status IN ('completed', 'failed', 'cancelled', 'terminated', 'continued')
$$;

-- Return the id of the newest execution of an entity; NULL if there is none.
CREATE FUNCTION {schema}.instances_newest_{code}(entity text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT execution_id FROM {schema}.instances WHERE entity_id = entity ORDER BY position DESC LIMIT 1);
END $$;

-- Lock the state of an execution and return it; a row of NULLs if there is none.
CREATE FUNCTION {schema}.instances_lock_{code}(id text) RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
BEGIN
    SELECT * INTO state FROM {schema}.states WHERE execution_id = id FOR UPDATE;
    RETURN state;
END $$;

-- Lock the state of the newest execution of an entity and return it; a row of NULLs if there is none.
CREATE FUNCTION {schema}.instances_lock_newest_{code}(entity text)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    id text := {schema}.instances_newest_{code}(entity);
    newest text;
BEGIN
    LOOP
        IF id IS NULL THEN RETURN NULL; END IF;
        SELECT * INTO state FROM {schema}.states WHERE execution_id = id FOR UPDATE;
        -- Who held the lock may have begun another, or purged this one.
        newest := {schema}.instances_newest_{code}(entity);
        IF newest = id AND state.execution_id IS NOT NULL THEN RETURN state; END IF;
        id := newest;
    END LOOP;
END $$;

-- Write a state back.
CREATE FUNCTION {schema}.instances_save_{code}(state {schema}.states) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.states SET
        status = state.status, last_seq = state.last_seq, epoch = state.epoch, commits = state.commits,
        feed_key = state.feed_key, wake = state.wake, wake_at = state.wake_at, ready_at = state.ready_at, turn = state.turn,
        owner = state.owner, worker = state.worker, claim = state.claim, leased_until = state.leased_until,
        deliveries = state.deliveries, last_failure = state.last_failure, paused = state.paused, parked = state.parked,
        dead_letter = state.dead_letter, covered = state.covered
    WHERE execution_id = state.execution_id;
END $$;

-- Return an execution as `rows.instance_of` decodes it, from its two rows. Its status is the one that is given: that of its
-- row in instances, or the one below a pause in states.
CREATE FUNCTION {schema}.instances_view_{code}(i {schema}.instances, s {schema}.states, status text)
RETURNS jsonb LANGUAGE sql STABLE AS $$
SELECT jsonb_build_array(
    i.execution_id, i.entity_id, i.run_id, i.tree_id, i.generation, i.attempt, i.kind, i.name, i.queue, status,
    i.created_at, i.closed_at, i.deactivated, s.last_seq, s.wake_at, i.tags, s.parked, s.dead_letter, i.parent,
    i.signal_schemas, i.failure, i.archived
)
$$;

-- Return an execution as others see it, by its id; NULL if there is none.
CREATE FUNCTION {schema}.instances_show_{code}(id text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT {schema}.instances_view_{code}(i, s, i.status)
        FROM {schema}.instances i JOIN {schema}.states s ON s.execution_id = i.execution_id WHERE i.execution_id = id
    );
END $$;
