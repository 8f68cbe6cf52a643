-- Leases on instances. A claim raises the epoch; a verb that names another one comes from a worker that lost the lease. A
-- leased instance is offered from the end of its lease on, so that an expired lease needs no recovery.
-- tables: tried, and those of activities.sql, under the lock on the state; reads states
--
-- A function that changes the state returns it; the verb writes it.

-- Return why an instance is not leased under an epoch; NULL: it is.
CREATE FUNCTION {schema}.leases_refusal_{code}(state {schema}.states, entity_id text, epoch bigint)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF state.execution_id IS NULL OR state.entity_id <> entity_id THEN RETURN 'there is no such instance'; END IF;
    RETURN CASE WHEN state.epoch <> epoch OR state.leased_until IS NULL THEN 'the lease is lost' END;
END $$;

-- Whether the code of an instance may run: that of a scheduled one, from its moment on.
CREATE FUNCTION {schema}.leases_may_begin_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN state.status <> 'scheduled' OR coalesce(state.wake_at <= frame.now, false);
END $$;

-- Whether a worker has tried an instance, and its code does not fit.
CREATE FUNCTION {schema}.leases_has_tried_{code}(state {schema}.states, worker text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM {schema}.tried t
        WHERE t.execution_id = state.execution_id AND t.worker = leases_has_tried_{code}.worker
    );
END $$;

-- Offer an instance again to all workers.
CREATE FUNCTION {schema}.leases_forget_tries_{code}(state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.tried t WHERE t.execution_id = state.execution_id;
END $$;

-- Tell of a free instance by what it is: ready, parked, or waiting for its moment.
CREATE FUNCTION {schema}.leases_note_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.paused IS NOT NULL OR state.dead_letter IS NOT NULL THEN RETURN; END IF;
    IF state.ready_at IS NOT NULL OR state.wake_at <= frame.now THEN
        PERFORM {schema}.notices_offer_{code}(state);
    ELSIF state.wake_at IS NOT NULL THEN
        PERFORM {schema}.notices_due_{code}(frame, state.queue, state.wake_at);
    END IF;
END $$;

-- Offer an instance again that was paused or a dead letter: a free one keeps its place, a leased one is due.
CREATE FUNCTION {schema}.leases_offer_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.leased_until IS NULL THEN
        PERFORM {schema}.leases_note_{code}(frame, state);
    ELSE
        PERFORM {schema}.notices_due_{code}(frame, state.queue, state.leased_until);
    END IF;
    RETURN state;
END $$;

-- Make a free instance ready, unless it is scheduled for later; one that is ready keeps its place.
CREATE FUNCTION {schema}.leases_make_ready_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.ready_at IS NULL AND {schema}.leases_may_begin_{code}(frame, state) THEN
        state.ready_at := {schema}.frame_ready_{code}(frame);
        state.turn := nextval('{schema}.turns');
        PERFORM {schema}.leases_note_{code}(frame, state);
    END IF;
    RETURN state;
END $$;

-- End the lease of an instance and offer it as free; with *ready* behind all others.
CREATE FUNCTION {schema}.leases_free_{code}(frame {schema}.frame_{code}, state {schema}.states, ready boolean)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state.owner := NULL;
    state.worker := NULL;
    state.claim := NULL;
    state.leased_until := NULL;
    state.ready_at := NULL;
    IF state.status = 'diverged' OR (ready AND {schema}.leases_may_begin_{code}(frame, state)) THEN
        state.ready_at := {schema}.frame_ready_{code}(frame);
        state.turn := nextval('{schema}.turns');
    END IF;
    PERFORM {schema}.leases_note_{code}(frame, state);
    RETURN state;
END $$;

-- Stop offering an instance.
CREATE FUNCTION {schema}.leases_bury_{code}(frame {schema}.frame_{code}, state {schema}.states, reason text)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state := {schema}.activities_lease_alone_{code}(frame, state);
    state.owner := NULL;
    state.worker := NULL;
    state.claim := NULL;
    state.leased_until := NULL;
    state.ready_at := NULL;
    state.dead_letter := reason;
    RETURN state;
END $$;

-- Return why an instance is no longer handed out (`rules.instance_dead_letter`).
CREATE FUNCTION {schema}.leases_dead_letter_{code}(state {schema}.states)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN 'handed out ' || state.deliveries || ' times without a commit' || state.last_failure;
END $$;

-- Lease an instance. One that was handed out too often becomes a dead letter instead, and is not leased.
CREATE FUNCTION {schema}.leases_take_{code}(
    frame {schema}.frame_{code}, state {schema}.states, worker text, token text DEFAULT NULL
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF state.deliveries >= 20 THEN  -- rules.REDELIVERIES
        RETURN {schema}.leases_bury_{code}(frame, state, {schema}.leases_dead_letter_{code}(state));
    END IF;
    state := {schema}.activities_put_back_{code}(frame, state, 1);
    state.owner := frame.owner;
    state.worker := worker;
    state.claim := token;
    state.deliveries := state.deliveries + 1;
    state.epoch := state.epoch + 1;
    state.leased_until := frame.now + frame.lease;
    state.ready_at := NULL;
    PERFORM {schema}.notices_lease_{code}(frame, state);
    RETURN state;
END $$;

-- Return a claim: the entity, the execution, the epoch, the instance, the wake counter and the inbox.
CREATE FUNCTION {schema}.leases_claimed_{code}(i {schema}.instances, s {schema}.states)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN jsonb_build_array(
        s.entity_id, s.execution_id, s.epoch, {schema}.instances_view_{code}(i, s, s.status), s.wake,
        CASE WHEN s.wake = 0 THEN '[]'::jsonb ELSE {schema}.inbox_since_{code}(s.execution_id, 0) END
    );
END $$;

-- Whether the worker that offers itself with [worker, queue, ...] may have an instance, because no older work waits in its
-- queue.
CREATE FUNCTION {schema}.leases_accepts_{code}(frame {schema}.frame_{code}, state {schema}.states, offer jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF coalesce(jsonb_typeof(offer), 'null') = 'null' OR state.leased_until IS NOT NULL OR state.status <> 'running'
        OR state.paused IS NOT NULL OR state.dead_letter IS NOT NULL OR state.deliveries >= 20  -- rules.REDELIVERIES
        OR NOT (offer - 0) ? state.queue OR {schema}.leases_has_tried_{code}(state, offer ->> 0)
    THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM {schema}.states s
        WHERE s.queue = state.queue AND s.offered_at <= {schema}.frame_end_{code}(frame) AND s.status <> 'diverged'
            AND s.execution_id <> state.execution_id
    );
END $$;

-- End the lease on an instance without a commit: it is offered again, or with a reason a dead letter.
CREATE FUNCTION {schema}.leases_release_{code}(
    frame {schema}.frame_{code}, state {schema}.states, failed text, final boolean
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF failed IS NULL THEN state.deliveries := greatest(0, state.deliveries - 1); END IF;
    state.last_failure := coalesce('; the last error: ' || nullif(failed, ''), '');
    state := {schema}.activities_put_back_{code}(frame, state, CASE WHEN failed IS NULL THEN 0 ELSE 1 END);
    IF final THEN RETURN {schema}.leases_bury_{code}(frame, state, failed); END IF;
    RETURN {schema}.leases_free_{code}(frame, state, true);
END $$;
