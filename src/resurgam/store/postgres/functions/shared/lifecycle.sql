-- Executions: begun, sent events, paused, terminated.
-- tables: instances, instance_tags, events, inbox, activities, tried, under the lock on the state; inserts states

-- Begin an execution, free and ready to be claimed; a row of NULLs if its entity has an open one. birth is `parts.birth_part`.
-- An id that another execution has is an error: no other id would be tried, however often the caller looks.
CREATE FUNCTION {schema}.lifecycle_begin_{code}(frame {schema}.frame_{code}, birth jsonb, paused text DEFAULT NULL)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    holder text;
BEGIN
    INSERT INTO {schema}.instances (
        execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, tags, parent,
        parent_id, parent_key, first_run
    )
    SELECT
        b.execution_id, b.entity_id, b.run_id, b.tree_id, b.generation, b.attempt, b.kind, b.name, b.queue,
        CASE WHEN paused IS NULL THEN b.status ELSE 'paused' END, b.created_at, coalesce(b.tags, '{}'), b.parent,
        b.parent_id, b.parent_key, b.first_run
    FROM jsonb_to_record(birth) AS b (
        execution_id text, entity_id text, run_id text, tree_id text, generation bigint, attempt bigint, kind text, name text,
        queue text, status text, created_at bigint, tags text, parent text, parent_id text, parent_key text, first_run text
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT i.entity_id INTO holder FROM {schema}.instances i WHERE i.execution_id = birth ->> 'execution_id'
            AND (i.entity_id, i.run_id, i.attempt)
                <> (birth ->> 'entity_id', birth ->> 'run_id', (birth ->> 'attempt')::bigint);
        IF FOUND THEN
            RAISE unique_violation USING MESSAGE = format(
                'workflow %L cannot begin: its execution id %L is that of an execution of workflow %L',
                birth ->> 'entity_id', birth ->> 'execution_id', holder);
        END IF;
        RETURN NULL;
    END IF;
    state.execution_id := birth ->> 'execution_id';
    state.entity_id := birth ->> 'entity_id';
    state.queue := birth ->> 'queue';
    state.status := birth ->> 'status';
    state.wake_at := (birth ->> 'wake_at')::bigint;
    state.paused := paused;
    state.last_seq := 0;
    state.epoch := 0;
    state.commits := 0;
    state.feed_key := 0;
    state.wake := 0;
    state.turn := 0;
    state.deliveries := 0;
    state.last_failure := '';
    state := {schema}.log_append_{code}(frame, state, jsonb_build_array(birth -> 'entry'));
    state := {schema}.leases_free_{code}(frame, state, true);
    INSERT INTO {schema}.states (
        execution_id, entity_id, queue, status, last_seq, feed_key, wake_at, ready_at, turn, paused
    )
    VALUES (
        state.execution_id, state.entity_id, state.queue, state.status, state.last_seq, state.feed_key, state.wake_at,
        state.ready_at, state.turn, state.paused
    );
    IF birth ? 'tags' THEN
        INSERT INTO {schema}.instance_tags (name, value, created_at, execution_id)
        SELECT t.key, t.value, (birth ->> 'created_at')::bigint, state.execution_id
        FROM jsonb_each_text((birth ->> 'tags')::jsonb) t;
    END IF;
    RETURN state;
END $$;

-- Let an execution be found by the tags that its row has now, and by no others.
CREATE FUNCTION {schema}.lifecycle_tag_{code}(id text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.instance_tags t USING {schema}.instances i
    WHERE t.execution_id = id AND i.execution_id = id AND i.tags::jsonb ->> t.name IS DISTINCT FROM t.value;
    INSERT INTO {schema}.instance_tags (name, value, created_at, execution_id)
    SELECT t.key, t.value, i.created_at, id
    FROM {schema}.instances i CROSS JOIN LATERAL jsonb_each_text(i.tags::jsonb) t WHERE i.execution_id = id
    ON CONFLICT DO NOTHING;
END $$;

-- Put an entry into the inbox; two kinds of them begin an instance that is scheduled for later.
CREATE FUNCTION {schema}.lifecycle_hand_on_{code}(
    frame {schema}.frame_{code}, state {schema}.states, entry jsonb, holes jsonb DEFAULT NULL
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.status = 'scheduled' AND entry ->> 0 IN ('workflow_begun', 'cancel_requested') THEN
        state.status := 'running';
        state.wake_at := NULL;
        UPDATE {schema}.instances i SET status = 'running'
        WHERE i.execution_id = state.execution_id AND state.paused IS NULL;
        IF state.leased_until IS NOT NULL AND state.paused IS NULL THEN
            PERFORM {schema}.notices_due_{code}(frame, state.queue, state.leased_until);  -- it is offered then
        END IF;
    END IF;
    RETURN {schema}.inbox_put_{code}(frame, state, entry, holes);
END $$;

-- End the pause of an instance, whatever ends it.
CREATE FUNCTION {schema}.lifecycle_end_pause_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state.paused := NULL;
    PERFORM {schema}.activities_take_up_{code}(frame, state);
    RETURN state;
END $$;

-- Close an instance whatever its code does; a new epoch fences the worker that holds it.
CREATE FUNCTION {schema}.lifecycle_terminate_{code}(frame {schema}.frame_{code}, state {schema}.states, entry jsonb)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := greatest(frame.now, {schema}.log_last_moment_{code}(state.execution_id));
    body text := {schema}.template_fill_{code}(entry -> 1, jsonb_build_object('seq', state.last_seq + 1, 'at', at));
BEGIN
    state := {schema}.log_append_{code}(frame, state, jsonb_build_array(jsonb_build_array(entry -> 0, body)));
    state := {schema}.activities_lease_alone_{code}(frame, state);
    IF state.paused IS NOT NULL THEN state := {schema}.lifecycle_end_pause_{code}(frame, state); END IF;
    PERFORM {schema}.leases_forget_tries_{code}(state);
    state.status := 'terminated';
    state.wake_at := NULL;
    state.parked := NULL;
    state.dead_letter := NULL;
    state.epoch := state.epoch + 1;
    state.deliveries := 0;
    UPDATE {schema}.instances i SET status = 'terminated', closed_at = frame.now WHERE i.execution_id = state.execution_id;
    PERFORM {schema}.notices_closed_{code}(frame, state.execution_id);
    RETURN {schema}.leases_free_{code}(frame, state, true);
END $$;

-- Pause an instance, or widen its pause to the tree.
CREATE FUNCTION {schema}.lifecycle_pause_{code}(frame {schema}.frame_{code}, state {schema}.states, tree boolean)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.paused IS NULL THEN
        PERFORM {schema}.activities_set_aside_{code}(frame, state);
        UPDATE {schema}.instances i SET status = 'paused' WHERE i.execution_id = state.execution_id;
    END IF;
    state.paused := CASE WHEN tree THEN 'tree' ELSE 'alone' END;
    RETURN state;
END $$;

-- Offer an instance again that was paused; one that is ready goes behind all others.
CREATE FUNCTION {schema}.lifecycle_resume_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state := {schema}.lifecycle_end_pause_{code}(frame, state);
    UPDATE {schema}.instances i SET status = state.status WHERE i.execution_id = state.execution_id;
    IF state.ready_at IS NOT NULL THEN
        state.ready_at := {schema}.frame_ready_{code}(frame);
        state.turn := nextval('{schema}.turns');
    END IF;
    RETURN {schema}.leases_offer_{code}(frame, state);
END $$;

-- Whether an event changes an open instance: a repeated pause and the end of none do not.
CREATE FUNCTION {schema}.lifecycle_matters_{code}(state {schema}.states, entry jsonb)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
SELECT CASE entry ->> 0
    WHEN 'workflow_paused' THEN
        (state).paused IS NULL OR ((state).paused = 'alone' AND coalesce((entry ->> 4)::boolean, false))
    WHEN 'workflow_resumed' THEN (state).paused IS NOT NULL
    WHEN 'workflow_begun' THEN (state).status = 'scheduled'
    ELSE true
END
$$;

-- Do what an event does to an open instance.
CREATE FUNCTION {schema}.lifecycle_apply_{code}(frame {schema}.frame_{code}, state {schema}.states, entry jsonb)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    type text := entry ->> 0;
BEGIN
    IF type = 'workflow_terminated' THEN RETURN {schema}.lifecycle_terminate_{code}(frame, state, entry); END IF;
    IF NOT {schema}.lifecycle_matters_{code}(state, entry) THEN RETURN state; END IF;
    IF type = 'workflow_paused' THEN
        state := {schema}.lifecycle_pause_{code}(frame, state, coalesce((entry ->> 4)::boolean, false));
    ELSIF type = 'workflow_resumed' THEN
        state := {schema}.lifecycle_resume_{code}(frame, state);
    END IF;
    RETURN {schema}.lifecycle_hand_on_{code}(frame, state, entry);
END $$;
