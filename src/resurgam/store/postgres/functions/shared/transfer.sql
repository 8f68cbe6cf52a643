-- Whole executions, on their way from one store to another.

-- Return a text that differs whenever anything of an execution has changed that a copy of it holds. Who changes an inbox, a log
-- or a promise raises a counter of the state; activities have none. An execution that is archived and restored has the counters
-- of a new one.
CREATE FUNCTION {schema}.transfer_version_{code}(state {schema}.states) RETURNS text LANGUAGE sql STABLE AS $$
SELECT concat_ws(' ', state.last_seq, state.epoch, state.commits, state.wake, state.status, state.paused, md5(concat(
    state.dead_letter, state.parked, state.covered,
    (SELECT i.archived FROM {schema}.instances i WHERE i.execution_id = state.execution_id), ' ',
    (SELECT string_agg(concat_ws(' ', a.ref, a.attempt, a.epoch, a.deliveries, a.visible_at, a.heartbeat_at, a.dead_letter),
                       ',' ORDER BY a.ref)
     FROM {schema}.activities a WHERE a.execution_id = state.execution_id))))
$$;

-- Whether executions of an entity, given as [[id, version], ...] in their order, are all there as they were.
CREATE FUNCTION {schema}.transfer_is_unchanged_{code}(entity text, versions jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN versions = (
        SELECT coalesce(
            jsonb_agg(jsonb_build_array(i.execution_id, {schema}.transfer_version_{code}(s)) ORDER BY i.position), '[]')
        FROM {schema}.instances i JOIN {schema}.states s USING (execution_id)
        WHERE i.entity_id = entity AND i.execution_id IN (SELECT one ->> 0 FROM jsonb_array_elements(versions) one)
    );
END $$;

-- Insert an execution from another store, without its log, ready unless it is complete or waits for its moment. The answer is
-- whether it could be: not if its entity has an open one meanwhile, or it is there already.
CREATE FUNCTION {schema}.transfer_insert_{code}(frame {schema}.frame_{code}, copy jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    id text := copy ->> 'execution_id';
    key bigint := {schema}.log_key_{code}();
    state {schema}.states;
BEGIN
    INSERT INTO {schema}.instances (
        execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at,
        deactivated, tags, parent, parent_id, parent_key, first_run, signal_schemas, failure,
        archived)
    SELECT x.execution_id, x.entity_id, x.run_id, x.tree_id, x.generation, x.attempt, x.kind, x.name, x.queue,
           CASE WHEN x.paused IS NULL THEN x.status ELSE 'paused' END, x.created_at, x.closed_at,
           x.deactivated, x.tags, x.parent, x.parent_id, x.parent_key, x.first_run, x.signal_schemas, x.failure,
           x.archived
    FROM jsonb_to_record(copy) AS x (
        execution_id text, entity_id text, run_id text, tree_id text, generation bigint, attempt bigint, kind text, name text,
        queue text, status text, paused text, created_at bigint, closed_at bigint, deactivated boolean, tags text, parent text,
        parent_id text, parent_key text, first_run text, signal_schemas text, failure text, archived text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO {schema}.states (
        execution_id, entity_id, queue, status, last_seq, feed_key, wake, wake_at, paused, parked, dead_letter, ready_at, turn)
    SELECT id, x.entity_id, x.queue, x.status, x.last_seq, key, jsonb_array_length(copy -> 'inbox'), x.wake_at, x.paused,
           x.parked, x.dead_letter, CASE WHEN x.ready THEN {schema}.frame_ready_{code}(frame) END, nextval('{schema}.turns')
    FROM jsonb_to_record(copy) AS x (
        entity_id text, queue text, status text, last_seq bigint, wake_at bigint, paused text, parked text, dead_letter text,
        ready boolean)
    RETURNING * INTO state;
    INSERT INTO {schema}.instance_tags (name, value, created_at, execution_id)
    SELECT tag.key, tag.value, (copy ->> 'created_at')::bigint, id FROM jsonb_each_text(copy -> 'tag_rows') AS tag;
    PERFORM {schema}.transfer_insert_activities_{code}(frame, state, copy -> 'activities');
    DELETE FROM {schema}.promises p USING jsonb_array_elements(copy -> 'promises') AS one WHERE p.promise_id = one ->> 0;
    INSERT INTO {schema}.promises (promise_id, entity_id, execution_id, name, schema, settled)
    SELECT one ->> 0, state.entity_id, id, one ->> 1, one ->> 2, (one ->> 3)::boolean
    FROM jsonb_array_elements(copy -> 'promises') WITH ORDINALITY AS p (one, number) ORDER BY p.number;
    IF jsonb_typeof(copy -> 'answer') = 'array' THEN
        INSERT INTO {schema}.answers (execution_id, type, body) VALUES (id, copy -> 'answer' ->> 0, copy -> 'answer' ->> 1);
    END IF;
    IF state.offered_at IS NOT NULL THEN
        IF state.ready_at IS NOT NULL THEN PERFORM {schema}.notices_work_{code}(state.queue); END IF;
        IF state.wake_at IS NOT NULL THEN PERFORM {schema}.notices_due_{code}(frame, state.queue, state.wake_at); END IF;
    END IF;
    PERFORM {schema}.notices_log_{code}(frame, id);
    RETURN true;
END $$;

-- Insert the log of an execution that was inserted, with what is forgotten of it, and its inbox.
CREATE FUNCTION {schema}.transfer_insert_log_{code}(copy jsonb)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    id CONSTANT text := copy ->> 'execution_id';
    key CONSTANT bigint := {schema}.log_key_{code}();
BEGIN
    INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
    SELECT id, (e.entry ->> 0)::bigint, key, e.entry ->> 1, e.entry ->> 2
    FROM jsonb_array_elements(copy -> 'log') WITH ORDINALITY AS e (entry, number) ORDER BY e.number;
    PERFORM {schema}.log_forget_{code}(id, copy -> 'forgotten');
    INSERT INTO {schema}.inbox (execution_id, wake, type, body, overtakes, promise_id)
    SELECT id, e.number, e.entry ->> 0, e.entry ->> 1, (e.entry ->> 2)::boolean, e.entry ->> 3
    FROM jsonb_array_elements(copy -> 'inbox') WITH ORDINALITY AS e (entry, number);
END $$;

-- Insert activities, each at its attempt and its moment.
CREATE FUNCTION {schema}.transfer_insert_activities_{code}(
    frame {schema}.frame_{code}, state {schema}.states, activities jsonb
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    added {schema}.activities;
BEGIN
    FOR added IN
        INSERT INTO {schema}.activities (
            execution_id, ref, queue, request, visible_at, ready_at, turn, attempt, deliveries, dead_letter, aside, details,
            heartbeat_at)
        SELECT state.execution_id, (one ->> 0)::bigint, one ->> 1, one ->> 2, (one ->> 3)::bigint, (one ->> 3)::bigint * 1000,
               nextval('{schema}.turns'), (one ->> 4)::bigint, (one ->> 5)::bigint, one ->> 6, state.paused IS NOT NULL,
               one ->> 7, (one ->> 8)::bigint
        FROM jsonb_array_elements(activities) AS one
        RETURNING *
    LOOP
        CONTINUE WHEN added.offered_at IS NULL;
        IF added.visible_at <= frame.now THEN
            PERFORM {schema}.notices_work_{code}(added.queue);
        ELSE
            PERFORM {schema}.notices_due_{code}(frame, added.queue, added.visible_at);
        END IF;
    END LOOP;
END $$;
