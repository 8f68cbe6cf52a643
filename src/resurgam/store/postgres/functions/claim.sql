-- Lease instances that are ready, whose moment has come, or whose lease has expired, in the order of becoming so.
-- part: worker, queues, limit, token
-- answer: 0, 1 if there may be more, 2 if others hold what is left, or 3 if it is their share; then claims [entity id,
--   execution id, epoch, view, wake, [[wake of an entry, body], ...]]
-- tables: states, activities and announced; reads instances, inbox, tried, workers
-- locks: the states that it leases, in the order of the queue, with SKIP LOCKED: it waits for none

-- Return instances of one of the two lists, locked, in the order in which they became claimable: those that are ready, and those
-- whose moment has come.
CREATE FUNCTION {schema}.claim_find_{code}(
    frame {schema}.frame_{code}, is_parked boolean, worker text, queues text[], count bigint
)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
    ready CONSTANT bigint := 1152921504606846976;  -- what `frame_ready` subtracts
    ids text[];
BEGIN
    IF is_parked THEN
        SELECT array_agg(n.execution_id) INTO ids FROM (
            SELECT one.execution_id
            FROM unnest(queues) AS q (queue) CROSS JOIN (VALUES (-ready, -1), (0, until)) AS span (low, high)
            CROSS JOIN LATERAL (
                SELECT s.execution_id, s.offered_at, s.turn FROM {schema}.states s
                WHERE s.queue = q.queue AND s.offered_at BETWEEN span.low AND span.high AND s.status = 'diverged'
                    AND NOT EXISTS (
                        SELECT FROM {schema}.tried t
                        WHERE t.execution_id = s.execution_id AND t.worker = claim_find_{code}.worker
                    )
                ORDER BY s.offered_at, s.turn LIMIT count FOR UPDATE OF s SKIP LOCKED
            ) one
            ORDER BY one.offered_at & (ready - 1), one.turn LIMIT count
        ) n;
    ELSE
        SELECT array_agg(n.execution_id) INTO ids FROM (
            SELECT one.execution_id
            FROM unnest(queues) AS q (queue) CROSS JOIN (VALUES (-ready, -1), (0, until)) AS span (low, high)
            CROSS JOIN LATERAL (
                SELECT s.execution_id, s.offered_at, s.turn FROM {schema}.states s
                WHERE s.queue = q.queue AND s.offered_at BETWEEN span.low AND span.high AND s.status <> 'diverged'
                    AND NOT EXISTS (
                        SELECT FROM {schema}.tried t
                        WHERE t.execution_id = s.execution_id AND t.worker = claim_find_{code}.worker
                    )
                ORDER BY s.offered_at, s.turn LIMIT count FOR UPDATE OF s SKIP LOCKED
            ) one
            ORDER BY one.offered_at & (ready - 1), one.turn LIMIT count
        ) n;
    END IF;
    RETURN coalesce(ids, '{}');
END $$;

-- Lease instances that are locked; those that were handed out too often become dead letters.
CREATE FUNCTION {schema}.claim_lease_{code}(frame {schema}.frame_{code}, worker text, token text, ids text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
BEGIN
    FOR state IN
        SELECT * FROM {schema}.states s
        WHERE s.execution_id = ANY (ids) AND (s.deliveries >= 20 OR s.covered IS NOT NULL)  -- rules.REDELIVERIES
    LOOP
        IF state.deliveries >= 20 THEN
            state := {schema}.leases_bury_{code}(frame, state, {schema}.leases_dead_letter_{code}(state));
            PERFORM {schema}.instances_save_{code}(state);
        ELSE
            PERFORM {schema}.activities_put_back_{code}(frame, state, 1);
        END IF;
    END LOOP;
    UPDATE {schema}.states s SET
        owner = frame.owner, worker = claim_lease_{code}.worker, claim = token, deliveries = s.deliveries + 1,
        epoch = s.epoch + 1, leased_until = frame.now + frame.lease, ready_at = NULL, covered = NULL
    WHERE s.execution_id = ANY (ids) AND s.dead_letter IS NULL;
END $$;

-- Return claims of instances that were leased by a token, in the given order.
CREATE FUNCTION {schema}.claim_answer_{code}(frame {schema}.frame_{code}, ids text[])
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg({schema}.leases_claimed_{code}(i, s) ORDER BY array_position(ids, s.execution_id)), '[]')
        FROM {schema}.states s JOIN {schema}.instances i ON i.execution_id = s.execution_id
        WHERE s.execution_id = ANY (ids) AND s.dead_letter IS NULL
    );
END $$;

-- Whether a worker could claim something in some queues, if nobody holds it.
CREATE FUNCTION {schema}.claim_left_{code}(frame {schema}.frame_{code}, worker text, queues text[])
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
BEGIN
    RETURN EXISTS (
        SELECT FROM unnest(queues) AS q (queue) CROSS JOIN LATERAL (
            SELECT FROM {schema}.states s
            WHERE s.queue = q.queue AND s.offered_at <= until AND s.status <> 'diverged' AND NOT EXISTS (
                SELECT FROM {schema}.tried t
                WHERE t.execution_id = s.execution_id AND t.worker = claim_left_{code}.worker
            )
            LIMIT 1
        ) one
    ) OR EXISTS (
        SELECT FROM unnest(queues) AS q (queue) CROSS JOIN LATERAL (
            SELECT FROM {schema}.states s
            WHERE s.queue = q.queue AND s.offered_at <= until AND s.status = 'diverged' AND NOT EXISTS (
                SELECT FROM {schema}.tried t
                WHERE t.execution_id = s.execution_id AND t.worker = claim_left_{code}.worker
            )
            LIMIT 1
        ) one
    );
END $$;

-- Return how many instances a worker may claim at once: its part of what waits, if other live workers serve one of the queues.
-- All of them are woken at the same moment, and the first one must not take everything.
CREATE FUNCTION {schema}.claim_share_{code}(frame {schema}.frame_{code}, worker text, queues text[], count bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
    least_share CONSTANT bigint := 4;
    serving bigint;
    waiting bigint;
BEGIN
    IF count <= least_share THEN RETURN count; END IF;
    SELECT 1 + count(*) INTO serving FROM {schema}.workers w
    WHERE w.expires_at > frame.now AND w.worker_id <> worker AND EXISTS (
        SELECT FROM json_array_elements(w.body::json -> 'queues') AS own (queue), unnest(queues) AS q (queue)
        WHERE own.queue::text = to_json(q.queue)::text
    );
    IF serving = 1 THEN RETURN count; END IF;
    SELECT count(*) INTO waiting FROM unnest(queues) AS q (queue) CROSS JOIN LATERAL (
        SELECT FROM {schema}.states s
        WHERE s.queue = q.queue AND s.offered_at <= until AND s.status <> 'diverged' LIMIT count * serving
    ) one;
    RETURN least(count, greatest(least_share, (waiting + serving - 1) / serving));
END $$;

CREATE FUNCTION {schema}.claim_part_{code}(
    frame {schema}.frame_{code}, worker text, queues text[], count bigint, token text
)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
    parked text[];
    share bigint;
    more int := 1;
    queue text;
BEGIN
    -- A call whose answer was lost is repeated, and finds what it has leased.
    SELECT array_agg(s.execution_id ORDER BY s.turn) INTO ids
    FROM {schema}.states s WHERE s.owner = frame.owner AND s.claim = token;
    IF ids IS NULL THEN
        share := {schema}.claim_share_{code}(frame, worker, queues, count);
        ids := {schema}.claim_find_{code}(frame, false, worker, queues, share);
        IF cardinality(ids) < share THEN
            parked := {schema}.claim_find_{code}(frame, true, worker, queues, share - cardinality(ids));
            ids := ids || parked;
        END IF;
        IF cardinality(ids) < share THEN more := 0; ELSIF share < count THEN more := 3; END IF;
        IF ids <> '{}' THEN
            PERFORM {schema}.claim_lease_{code}(frame, worker, token, ids);
            FOREACH queue IN ARRAY queues LOOP
                PERFORM {schema}.notices_due_{code}(frame, queue, frame.now + frame.lease);
            END LOOP;
        END IF;
        IF more = 0 AND {schema}.claim_left_{code}(frame, worker, queues) THEN more := 2; END IF;
    END IF;
    RETURN jsonb_build_array(more) || {schema}.claim_answer_{code}(frame, ids);
END $$;

CREATE FUNCTION {schema}.claim_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        list := array_append(list, {schema}.claim_part_{code}(
            frame, part ->> 0, ARRAY(SELECT jsonb_array_elements_text(part -> 1)), (part ->> 2)::bigint, part ->> 3));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
