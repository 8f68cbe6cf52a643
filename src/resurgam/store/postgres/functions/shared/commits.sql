-- Commits: the fence, the log, the inbox, activities, the status, then effects. A part is an object (`parts.commit_part`);
-- what most commits do not have is left out of it.
-- tables: states, instances, instance_tags, events, inbox, activities, tried, answers, promises, and for effects those of
--   effects.sql
-- locks: states, topics

-- Return why a commit must not be applied; NULL: it may.
CREATE FUNCTION {schema}.commits_refusal_{code}(state {schema}.states, part jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    refusal text := {schema}.leases_refusal_{code}(state, part ->> 'entity_id', (part ->> 'epoch')::bigint);
BEGIN
    IF refusal IS NOT NULL THEN RETURN refusal; END IF;
    IF state.last_seq <> (part ->> 'base_seq')::bigint THEN
        RETURN 'the log is at ' || state.last_seq || ', not at ' || (part ->> 'base_seq');
    END IF;
    IF part ? 'strict' AND state.wake > (part ->> 'wake')::bigint AND EXISTS (
        SELECT FROM {schema}.inbox i
        WHERE i.execution_id = state.execution_id AND i.wake > (part ->> 'wake')::bigint AND i.overtakes
    ) THEN
        RETURN 'unseen entries in the inbox overtake this strict commit';  -- records.INBOX_CHANGED
    END IF;
    RETURN NULL;
END $$;

-- Put the activities of a commit on their queues; return the refs of those that it claims, which are the ones that it names,
-- unless older work waits in their queue. The lease covers the first of them, up to a number: part of the state from now on.
CREATE FUNCTION {schema}.commits_dispatch_{code}(
    frame {schema}.frame_{code}, state {schema}.states, part jsonb, OUT changed {schema}.states, OUT claimed jsonb
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    busy text[];
    free jsonb;
    leased jsonb;
    covered jsonb;
BEGIN
    IF state.paused IS NULL THEN
        SELECT coalesce(array_agg(q.queue), '{}') INTO busy FROM (
            SELECT DISTINCT one ->> 1 AS queue FROM jsonb_array_elements(part -> 'activities') one WHERE one ->> 3 = 'true'
        ) q WHERE {schema}.activities_wait_in_{code}(frame, q.queue);
    END IF;
    SELECT
        jsonb_agg(a.one - 3 ORDER BY a.number) FILTER (WHERE NOT a.eager),
        jsonb_agg(a.one - 3 ORDER BY a.number) FILTER (WHERE a.eager AND a.place <= (part ->> 'room')::bigint),
        jsonb_agg(a.one - 3 ORDER BY a.number) FILTER (WHERE a.eager AND a.place > (part ->> 'room')::bigint),
        coalesce(jsonb_agg(a.one -> 0 ORDER BY a.number) FILTER (WHERE a.eager), '[]')
    INTO free, covered, leased, claimed
    FROM (
        SELECT b.*, sum(b.eager::int) OVER (ORDER BY b.number) AS place FROM (
            SELECT o.one, o.number, o.one ->> 3 = 'true' AND coalesce(NOT o.one ->> 1 = ANY (busy), false) AS eager
            FROM jsonb_array_elements(part -> 'activities') WITH ORDINALITY o (one, number)
        ) b
    ) a;
    IF free IS NOT NULL THEN PERFORM {schema}.activities_schedule_{code}(frame, state, free); END IF;
    IF leased IS NOT NULL THEN
        PERFORM {schema}.activities_schedule_claimed_{code}(frame, state, leased, part ->> 'worker');
    END IF;
    IF covered IS NOT NULL THEN
        state.covered := (coalesce(state.covered, '[]')::jsonb || covered)::text;
    END IF;
    changed := state;
END $$;

-- Withdraw activities, given as [[ref, answered, never started, entry], ...].
CREATE FUNCTION {schema}.commits_withdraw_{code}(
    frame {schema}.frame_{code}, state {schema}.states, withdrawals jsonb
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one jsonb;
    gone boolean;
    left_ text;
BEGIN
    FOR one IN SELECT * FROM jsonb_array_elements(withdrawals) LOOP
        gone := {schema}.activities_withdraw_{code}(
            state.execution_id, (one ->> 0)::bigint, (one ->> 1)::boolean, (one ->> 2)::boolean);
        IF NOT gone AND (one ->> 1)::boolean AND NOT (one ->> 2)::boolean AND state.covered IS NOT NULL THEN
            SELECT jsonb_agg(request)::text INTO left_
            FROM jsonb_array_elements(state.covered::jsonb) request WHERE request -> 0 <> one -> 0;
            gone := left_ IS DISTINCT FROM state.covered::jsonb::text;
            state.covered := left_;
        END IF;
        IF gone AND jsonb_typeof(one -> 3) = 'array' THEN
            state := {schema}.inbox_put_{code}(frame, state, one -> 3);
        END IF;
    END LOOP;
    RETURN state;
END $$;

-- Update the instance by the outcome of a commit.
CREATE FUNCTION {schema}.commits_update_{code}(frame {schema}.frame_{code}, state {schema}.states, part jsonb)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    before text := state.status;
    status text := coalesce(part ->> 'status', 'running');
    closed boolean := {schema}.instances_is_closed_{code}(status);
BEGIN
    IF status = 'scheduled' AND before = 'running' THEN status := 'running'; END IF;
    IF closed AND state.paused IS NOT NULL THEN state := {schema}.lifecycle_end_pause_{code}(frame, state); END IF;
    state.status := status;
    state.wake_at := (part ->> 'wake_at')::bigint;
    state.parked := part ->> 'parked';
    state.deliveries := 0;
    state.last_failure := '';
    state.commits := state.commits + 1;
    IF status <> before OR closed OR part ?| '{schemas,failure,tags}' THEN
        UPDATE {schema}.instances i SET
            status = CASE WHEN state.paused IS NULL THEN state.status ELSE 'paused' END,
            closed_at = CASE WHEN closed THEN coalesce(i.closed_at, frame.now) ELSE i.closed_at END,
            deactivated = part ? 'deactivated',
            signal_schemas = coalesce(part ->> 'schemas', i.signal_schemas),
            failure = coalesce(part ->> 'failure', i.failure),
            tags = coalesce(part ->> 'tags', i.tags)
        WHERE i.execution_id = state.execution_id;
    END IF;
    IF part ? 'tags' THEN PERFORM {schema}.lifecycle_tag_{code}(state.execution_id); END IF;
    IF closed AND NOT {schema}.instances_is_closed_{code}(before) THEN
        PERFORM {schema}.notices_closed_{code}(frame, state.execution_id);
    END IF;
    IF status = 'diverged' THEN
        INSERT INTO {schema}.tried (execution_id, worker) VALUES (state.execution_id, part ->> 'worker')
        ON CONFLICT DO NOTHING;
        DELETE FROM {schema}.tried t WHERE t.execution_id = state.execution_id AND t.worker IN (
            SELECT old.worker FROM {schema}.tried old
            WHERE old.execution_id = state.execution_id AND old.worker <> part ->> 'worker'
            OFFSET 999);  -- rules.TRIED_KEPT, with this one
    END IF;
    IF part ? 'answer' THEN
        INSERT INTO {schema}.answers AS a (execution_id, type, body)
        VALUES (state.execution_id, part -> 'answer' ->> 0, part -> 'answer' ->> 1)
        ON CONFLICT (execution_id) DO UPDATE SET type = excluded.type, body = excluded.body;
    END IF;
    RETURN state;
END $$;

-- Write the log, the inbox and the activities of a commit; return the refs of the activities that it claims.
CREATE FUNCTION {schema}.commits_write_{code}(
    frame {schema}.frame_{code}, state {schema}.states, part jsonb, OUT changed {schema}.states, OUT claimed jsonb
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    dispatched record;
    retry jsonb;
BEGIN
    claimed := '[]';
    IF part ? 'events' THEN state := {schema}.log_append_{code}(frame, state, part -> 'events'); END IF;
    IF part ? 'forgotten' THEN PERFORM {schema}.log_forget_{code}(state.execution_id, part -> 'forgotten'); END IF;
    IF part ? 'dropped' THEN PERFORM {schema}.log_drop_{code}(state.execution_id, part -> 'dropped'); END IF;
    IF part ? 'consumed' THEN
        DELETE FROM {schema}.inbox i WHERE i.execution_id = state.execution_id
            AND i.wake = ANY (ARRAY(SELECT one::bigint FROM jsonb_array_elements(part -> 'consumed') one));
    END IF;
    state.covered := part ->> 'running';
    IF part ? 'activities' THEN
        dispatched := {schema}.commits_dispatch_{code}(frame, state, part);
        state := dispatched.changed;
        claimed := dispatched.claimed;
    END IF;
    IF part ? 'answered' THEN
        PERFORM {schema}.activities_drop_{code}(
            state.execution_id, ARRAY(SELECT one::bigint FROM jsonb_array_elements(part -> 'answered') one));
    END IF;
    FOR retry IN SELECT * FROM jsonb_array_elements(part -> 'retries') LOOP
        PERFORM {schema}.activities_add_pending_{code}(frame, state, retry -> 0, retry -> 1);
    END LOOP;
    IF part ? 'withdrawals' THEN
        state := {schema}.commits_withdraw_{code}(frame, state, part -> 'withdrawals');
    END IF;
    changed := state;
END $$;

-- Apply an outcome if the lease holds and the log is where the advance began. Return the reason of a refusal; else the wake
-- counter, the entries since the one that the commit has seen, and the refs of what it has claimed.
CREATE FUNCTION {schema}.commits_apply_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states := {schema}.instances_lock_{code}(part ->> 'execution_id');
    refusal text := {schema}.commits_refusal_{code}(state, part);
    seen CONSTANT bigint := (part ->> 'wake')::bigint;
    written record;
    claimed jsonb;
    paused text;
BEGIN
    IF refusal IS NOT NULL THEN RETURN to_jsonb(refusal); END IF;
    written := {schema}.commits_write_{code}(frame, state, part);
    state := written.changed;
    claimed := written.claimed;
    paused := state.paused;
    state := {schema}.commits_update_{code}(frame, state, part);
    IF part ? 'promises' THEN PERFORM {schema}.promises_open_{code}(state, part -> 'promises'); END IF;
    IF part ? 'closed' THEN
        PERFORM {schema}.promises_close_{code}(
            state.execution_id, ARRAY(SELECT jsonb_array_elements_text(part -> 'closed')));
    END IF;
    IF part ? 'effects' THEN
        state := {schema}.effects_send_{code}(frame, state, part -> 'effects', paused, part ? 'successor');
    END IF;
    IF part ? 'successor' THEN
        PERFORM {schema}.effects_begin_successor_{code}(frame, state, part -> 'successor', paused);
    END IF;
    IF state.epoch = (part ->> 'epoch')::bigint THEN -- else a message has terminated its own sender
        IF (part ->> 'release')::boolean AND claimed = '[]' THEN
            state := {schema}.activities_lease_alone_{code}(frame, state, frame.now + frame.lease);
            state := {schema}.leases_free_{code}(frame, state, state.wake <> seen);
        ELSIF state.wake <> seen THEN
            PERFORM {schema}.instances_save_{code}(state);
            RETURN jsonb_build_array(state.wake, {schema}.inbox_since_{code}(state.execution_id, seen), claimed);
        END IF;
    END IF;
    PERFORM {schema}.instances_save_{code}(state);
    RETURN jsonb_build_array(state.wake, '[]'::jsonb, claimed);
END $$;
