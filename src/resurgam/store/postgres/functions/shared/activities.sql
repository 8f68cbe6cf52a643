-- Activities without an answer. Those that the lease on their instance covers have no row; they get one when that lease ends
-- without them, or when a verb names one. Those of a paused instance are set aside.
-- tables: activities, under the lock on the state of their execution; reads events. Only claim_activities locks rows by
-- themselves, and it waits for none.
--
-- A request is [ref, queue, JSON text]. A function that changes the state returns it; the verb writes it.

-- Tell of activities that were put on their queues: they can be claimed now, or from a moment on.
CREATE FUNCTION {schema}.activities_note_{code}(frame {schema}.frame_{code}, queue text, offered_at bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF offered_at <= {schema}.frame_end_{code}(frame) THEN
        PERFORM {schema}.notices_work_{code}(queue);
    ELSIF offered_at IS NOT NULL THEN
        PERFORM {schema}.notices_due_{code}(frame, queue, (offered_at + 999) / 1000);
    END IF;
END $$;

-- Put activities on their queues. Their epoch is that of an eager claim; a later claim has another.
CREATE FUNCTION {schema}.activities_schedule_{code}(frame {schema}.frame_{code}, state {schema}.states, requests jsonb)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.activities (execution_id, ref, queue, request, visible_at, ready_at, turn, epoch, aside)
    SELECT state.execution_id, (one ->> 0)::bigint, one ->> 1, one ->> 2, frame.now, {schema}.frame_ready_{code}(frame),
           nextval('{schema}.turns'), 1, state.paused IS NOT NULL
    FROM jsonb_array_elements(requests) one;
    IF state.paused IS NULL THEN
        PERFORM {schema}.notices_work_{code}(n.queue) FROM (
            SELECT DISTINCT one ->> 1 AS queue FROM jsonb_array_elements(requests) one
        ) n;
    END IF;
END $$;

-- Add activities that the commit which schedules them has claimed.
CREATE FUNCTION {schema}.activities_schedule_claimed_{code}(
    frame {schema}.frame_{code}, state {schema}.states, requests jsonb, worker text
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := frame.now + frame.lease;
BEGIN
    INSERT INTO {schema}.activities (
        execution_id, ref, queue, request, visible_at, ready_at, turn, epoch, deliveries, owner, worker, leased_until, aside
    )
    SELECT state.execution_id, (one ->> 0)::bigint, one ->> 1, one ->> 2, frame.now, {schema}.frame_ready_{code}(frame),
           nextval('{schema}.turns'), 1, 1, frame.owner, activities_schedule_claimed_{code}.worker, until,
           state.paused IS NOT NULL
    FROM jsonb_array_elements(requests) one;
    PERFORM {schema}.notices_due_{code}(frame, n.queue, until) FROM (
        SELECT DISTINCT one ->> 1 AS queue FROM jsonb_array_elements(requests) one
    ) n;
END $$;

-- Add an activity as it is given by `records.Pending`: a further attempt, or one of an adopted execution.
-- pending: visible_at, attempt, deliveries, dead letter, details, heartbeat_at
CREATE FUNCTION {schema}.activities_add_pending_{code}(
    frame {schema}.frame_{code}, state {schema}.states, request jsonb, pending jsonb
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    visible CONSTANT bigint := (pending ->> 0)::bigint;
    ready CONSTANT bigint := CASE WHEN visible <= frame.now THEN {schema}.frame_ready_{code}(frame) ELSE visible * 1000 END;
BEGIN
    INSERT INTO {schema}.activities AS a (
        execution_id, ref, queue, request, visible_at, ready_at, turn, attempt, deliveries, dead_letter, details, heartbeat_at,
        aside
    )
    VALUES (
        state.execution_id, (request ->> 0)::bigint, request ->> 1, request ->> 2, visible, ready,
        nextval('{schema}.turns'), (pending ->> 1)::bigint, (pending ->> 2)::bigint, pending ->> 3, pending ->> 4,
        (pending ->> 5)::bigint, state.paused IS NOT NULL
    )
    ON CONFLICT (execution_id, ref) DO UPDATE SET
        queue = excluded.queue, request = excluded.request, visible_at = excluded.visible_at, ready_at = excluded.ready_at,
        turn = excluded.turn, attempt = excluded.attempt, deliveries = excluded.deliveries,
        dead_letter = excluded.dead_letter, details = coalesce(excluded.details, a.details),
        heartbeat_at = coalesce(excluded.heartbeat_at, a.heartbeat_at), aside = excluded.aside,
        owner = NULL, worker = NULL, claim = NULL, leased_until = NULL;
    IF state.paused IS NULL AND pending ->> 3 IS NULL THEN
        PERFORM {schema}.activities_note_{code}(frame, request ->> 1, ready);
    END IF;
END $$;

-- Whether activities wait in a queue.
CREATE FUNCTION {schema}.activities_wait_in_{code}(frame {schema}.frame_{code}, queue text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM {schema}.activities a
        WHERE a.queue = activities_wait_in_{code}.queue AND a.offered_at <= {schema}.frame_end_{code}(frame)
    );
END $$;

-- Delete activities.
CREATE FUNCTION {schema}.activities_drop_{code}(execution_id text, refs bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.activities a
    WHERE a.execution_id = activities_drop_{code}.execution_id AND a.ref = ANY (refs);
END $$;

-- Withdraw an activity that is no longer wanted, unless a worker has begun it and may finish; return whether it is gone.
CREATE FUNCTION {schema}.activities_withdraw_{code}(execution_id text, ref bigint, answered boolean, never_started boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.activities a
    WHERE a.execution_id = activities_withdraw_{code}.execution_id AND a.ref = activities_withdraw_{code}.ref
        AND (answered OR a.leased_until IS NULL)
        AND NOT (never_started AND (a.leased_until IS NOT NULL OR a.deliveries > 0 OR a.attempt > 1));
    RETURN FOUND;
END $$;

-- Activities that the lease on their instance covers.

-- Put what the lease has covered back on its queues.
CREATE FUNCTION {schema}.activities_put_back_{code}(
    frame {schema}.frame_{code}, state {schema}.states, deliveries bigint
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.covered IS NULL THEN RETURN state; END IF;
    INSERT INTO {schema}.activities (
        execution_id, ref, queue, request, visible_at, ready_at, turn, deliveries, aside
    )
    SELECT state.execution_id, (one ->> 0)::bigint, one ->> 1, one ->> 2,
           {schema}.log_moment_{code}(state.execution_id, (one ->> 0)::bigint), {schema}.frame_ready_{code}(frame),
           nextval('{schema}.turns'), activities_put_back_{code}.deliveries, state.paused IS NOT NULL
    FROM jsonb_array_elements(state.covered::jsonb) one
    ON CONFLICT DO NOTHING;
    IF state.paused IS NULL THEN
        PERFORM {schema}.notices_work_{code}(one ->> 1) FROM jsonb_array_elements(state.covered::jsonb) one;
    END IF;
    state.covered := NULL;
    RETURN state;
END $$;

-- Give requests that the lease has covered leases of their own.
CREATE FUNCTION {schema}.activities_lease_covered_{code}(
    frame {schema}.frame_{code}, state {schema}.states, requests jsonb, until bigint
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.activities (
        execution_id, ref, queue, request, visible_at, ready_at, turn, deliveries, owner, worker, leased_until, aside
    )
    SELECT state.execution_id, (one ->> 0)::bigint, one ->> 1, one ->> 2,
           {schema}.log_moment_{code}(state.execution_id, (one ->> 0)::bigint), {schema}.frame_ready_{code}(frame),
           nextval('{schema}.turns'), 1, state.owner, state.worker, until, state.paused IS NOT NULL
    FROM jsonb_array_elements(requests) one
    ON CONFLICT DO NOTHING;
    PERFORM {schema}.notices_due_{code}(frame, one ->> 1, until) FROM jsonb_array_elements(requests) one;
END $$;

-- Give all that the lease has covered leases of its own, for the same time or until a moment.
CREATE FUNCTION {schema}.activities_lease_alone_{code}(
    frame {schema}.frame_{code}, state {schema}.states, until bigint DEFAULT NULL
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.covered IS NULL THEN RETURN state; END IF;
    PERFORM {schema}.activities_lease_covered_{code}(
        frame, state, state.covered::jsonb, coalesce(until, state.leased_until, frame.now));
    state.covered := NULL;
    RETURN state;
END $$;

-- Give one activity a lease of its own, if the lease on the instance covers it.
CREATE FUNCTION {schema}.activities_lease_named_{code}(frame {schema}.frame_{code}, state {schema}.states, ref bigint)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    named jsonb;
    left_ jsonb;
BEGIN
    IF state.covered IS NULL THEN RETURN state; END IF;
    SELECT jsonb_agg(one) FILTER (WHERE (one ->> 0)::bigint = activities_lease_named_{code}.ref),
           jsonb_agg(one) FILTER (WHERE (one ->> 0)::bigint <> activities_lease_named_{code}.ref)
    INTO named, left_ FROM jsonb_array_elements(state.covered::jsonb) one;
    IF named IS NULL THEN RETURN state; END IF;
    PERFORM {schema}.activities_lease_covered_{code}(frame, state, named, state.leased_until);
    state.covered := left_::text;
    RETURN state;
END $$;

-- Leases.

-- Return why an activity is not leased under an epoch; NULL: it is. With epoch 0 it has been covered; then one that is at the
-- given attempt counts under any lease.
CREATE FUNCTION {schema}.activities_refusal_{code}(activity {schema}.activities, epoch bigint, attempt bigint DEFAULT NULL)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF activity.ref IS NULL THEN RETURN 'the activity is answered or withdrawn'; END IF;
    IF epoch = 0 AND attempt IS NOT NULL THEN
        RETURN CASE WHEN activity.attempt <> attempt THEN 'the activity is at another attempt' END;
    END IF;
    RETURN CASE WHEN activity.epoch <> epoch OR activity.leased_until IS NULL THEN 'the lease of the activity is lost' END;
END $$;

-- Renew the lease of an activity, and keep the details of its last heartbeat.
CREATE FUNCTION {schema}.activities_extend_{code}(
    frame {schema}.frame_{code}, activity {schema}.activities, details text, heartbeat_at bigint
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.activities a SET
        leased_until = frame.now + frame.lease,
        details = coalesce(activities_extend_{code}.details, a.details),
        heartbeat_at = coalesce(activities_extend_{code}.heartbeat_at, a.heartbeat_at)
    WHERE a.execution_id = activity.execution_id AND a.ref = activity.ref;
    PERFORM {schema}.notices_due_{code}(frame, activity.queue, frame.now + frame.lease);
END $$;

-- End the lease of an activity: it is offered again, or with a reason a dead letter.
CREATE FUNCTION {schema}.activities_release_{code}(
    frame {schema}.frame_{code}, activity {schema}.activities, delivered boolean, dead_letter text
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.activities a SET
        leased_until = NULL, owner = NULL, worker = NULL, claim = NULL,
        dead_letter = activities_release_{code}.dead_letter,
        deliveries = CASE WHEN delivered THEN a.deliveries ELSE greatest(0, a.deliveries - 1) END,
        ready_at = {schema}.frame_ready_{code}(frame), turn = nextval('{schema}.turns')
    WHERE a.execution_id = activity.execution_id AND a.ref = activity.ref;
    IF dead_letter IS NULL AND NOT activity.aside THEN PERFORM {schema}.notices_work_{code}(activity.queue); END IF;
END $$;

-- Schedule the next attempt of an activity.
CREATE FUNCTION {schema}.activities_retry_{code}(
    frame {schema}.frame_{code}, activity {schema}.activities, next_at bigint, details text, heartbeat_at bigint
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ready bigint := CASE WHEN next_at <= frame.now THEN {schema}.frame_ready_{code}(frame) ELSE next_at * 1000 END;
BEGIN
    UPDATE {schema}.activities a SET
        attempt = a.attempt + 1, deliveries = 0, visible_at = next_at, ready_at = ready, turn = nextval('{schema}.turns'),
        leased_until = NULL, owner = NULL, worker = NULL, claim = NULL, dead_letter = NULL,
        details = coalesce(activities_retry_{code}.details, a.details),
        heartbeat_at = coalesce(activities_retry_{code}.heartbeat_at, a.heartbeat_at)
    WHERE a.execution_id = activity.execution_id AND a.ref = activity.ref;
    IF NOT activity.aside THEN PERFORM {schema}.activities_note_{code}(frame, activity.queue, ready); END IF;
END $$;

-- Return why an activity is no longer handed out (`rules.activity_dead_letter`). The encoder writes the name behind the ref, or
-- behind a prepared entry; one with escapes is shown as it is written.
CREATE FUNCTION {schema}.activities_dead_letter_{code}(activity {schema}.activities)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    name text := coalesce(CASE
        WHEN activity.request ~ '^\{"ref":\d+,"starts":' THEN split_part(split_part(activity.request, '},"name":"', 2), '"', 1)
        ELSE substring(activity.request FROM '^\{"ref":\d+,"name":"([^"]*)"')
    END, '?');
    quote text := CASE WHEN strpos(name, '''') > 0 THEN '"' ELSE '''' END;
BEGIN
    RETURN 'activity ' || quote || name || quote || ' (entry ' || activity.ref || ') was handed out ' || activity.deliveries
        || ' times without an answer';
END $$;

-- Pauses and dead letters.

-- Take the activities of an instance that is paused off their queues.
CREATE FUNCTION {schema}.activities_set_aside_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.activities a SET aside = true WHERE a.execution_id = state.execution_id;
END $$;

-- Put them back, each at the place that it had.
CREATE FUNCTION {schema}.activities_take_up_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    taken record;
BEGIN
    FOR taken IN
        UPDATE {schema}.activities a SET aside = false WHERE a.execution_id = state.execution_id AND a.aside
        RETURNING a.queue, a.offered_at
    LOOP
        PERFORM {schema}.activities_note_{code}(frame, taken.queue, taken.offered_at);
    END LOOP;
END $$;

-- Offer dead letters among the activities of an instance again; return how many.
CREATE FUNCTION {schema}.activities_revive_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    revived record;
    count bigint := 0;
BEGIN
    FOR revived IN
        UPDATE {schema}.activities a SET
            dead_letter = NULL, deliveries = 0, ready_at = {schema}.frame_ready_{code}(frame), turn = nextval('{schema}.turns')
        WHERE a.execution_id = state.execution_id AND a.dead_letter IS NOT NULL
        RETURNING a.queue, a.offered_at
    LOOP
        count := count + 1;
        PERFORM {schema}.activities_note_{code}(frame, revived.queue, revived.offered_at);
    END LOOP;
    RETURN count;
END $$;
