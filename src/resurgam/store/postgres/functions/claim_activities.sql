-- Lease activities whose time has come, in the order of becoming available.
-- part: worker, queues, limit, token, entry for activities whose workflow is closed
-- answer: 0, 1 if there may be more, or 2 if others hold what is left; then tasks [entity id, execution id, epoch, ref, attempt,
--   deliveries, request, details]
-- tables: activities and announced; inbox of those with a prepared entry; of closed workflows inbox and states; reads states
-- locks: the activities that it leases, in the order of the queue, then the states of closed workflows, and shared those of
--   activities with a prepared entry, all with SKIP LOCKED: it waits for none

-- Take activities off that must not run again: those of closed workflows are cancelled, those that were handed out too often
-- become dead letters.
CREATE FUNCTION {schema}.claim_activities_refuse_{code}(
    frame {schema}.frame_{code}, activity {schema}.activities, is_closed boolean, cancelled jsonb
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
BEGIN
    IF is_closed THEN
        -- If another call holds the instance, the activity stays for the next claim.
        SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = activity.execution_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN; END IF;
        PERFORM {schema}.activities_drop_{code}(activity.execution_id, ARRAY[activity.ref]);
        state := {schema}.inbox_put_{code}(
            frame, state, cancelled, jsonb_build_object('at', frame.now, 'ref', activity.ref));
        PERFORM {schema}.instances_save_{code}(state);
    ELSE
        UPDATE {schema}.activities a SET
            dead_letter = {schema}.activities_dead_letter_{code}(activity),
            owner = NULL, worker = NULL, claim = NULL, leased_until = NULL
        WHERE a.execution_id = activity.execution_id AND a.ref = activity.ref;
    END IF;
END $$;

-- Put the entry that the claim of an activity starts into the inbox of its instance, with the number of the delivery; return
-- whether that was possible. The encoder writes it behind the ref, and the name behind it.
CREATE FUNCTION {schema}.claim_activities_start_{code}(activity {schema}.activities)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prepared CONSTANT text := substr(split_part(activity.request, '},"name":"', 1), strpos(activity.request, '{"type":'));
    wake bigint;
BEGIN
    -- If another call holds the instance, the activity stays for the next claim.
    SELECT s.wake INTO wake FROM {schema}.states s WHERE s.execution_id = activity.execution_id FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM {schema}.inbox_put_quietly_{code}(
        activity.execution_id, wake, substring(prepared FROM '"type":"([^"]*)"'),
        prepared || ',"attempt":' || activity.deliveries + 1 || '}');
    RETURN true;
END $$;

-- Lock activities, lease those that may run, and return the number of those that were found.
CREATE FUNCTION {schema}.claim_activities_lease_{code}(
    frame {schema}.frame_{code}, worker text, queues text[], count bigint, token text, cancelled jsonb
)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
    ready CONSTANT bigint := 1152921504606846976;  -- what `frame_ready` subtracts
    found bigint := 0;
    ids text[] := '{}';
    refs bigint[] := '{}';
    candidate record;
BEGIN
    FOR candidate IN
        SELECT f.activity,
            -- One that outlives its workflow says so at the end of its text.
            {schema}.instances_is_closed_{code}(f.status) AND right((f.activity).request, 16) <> '"outlives":true}' AS is_closed
        FROM (
            SELECT n.activity, (
                SELECT s.status FROM {schema}.states s WHERE s.execution_id = (n.activity).execution_id
            ) AS status
            FROM (
                SELECT one.activity
                FROM unnest(queues) AS q (queue) CROSS JOIN (VALUES (-ready, -1), (0, until)) AS span (low, high)
                CROSS JOIN LATERAL (
                    SELECT a AS activity FROM {schema}.activities a
                    WHERE a.queue = q.queue AND a.offered_at BETWEEN span.low AND span.high
                    ORDER BY a.offered_at, a.turn LIMIT count FOR UPDATE OF a SKIP LOCKED
                ) one
                ORDER BY (one.activity).offered_at & (ready - 1), (one.activity).turn LIMIT count
            ) n
        ) f
    LOOP
        found := found + 1;
        IF candidate.is_closed OR (candidate.activity).deliveries >= 20 THEN  -- rules.REDELIVERIES
            PERFORM {schema}.claim_activities_refuse_{code}(frame, candidate.activity, candidate.is_closed, cancelled);
        ELSIF (CASE WHEN (candidate.activity).request ~ '^\{"ref":\d+,"starts":'
            THEN NOT {schema}.claim_activities_start_{code}(candidate.activity) END)
        THEN
            found := found - 1;
        ELSE
            ids := ids || (candidate.activity).execution_id;
            refs := refs || (candidate.activity).ref;
        END IF;
    END LOOP;
    UPDATE {schema}.activities a SET
        owner = frame.owner, worker = claim_activities_lease_{code}.worker, claim = token, deliveries = a.deliveries + 1,
        epoch = a.epoch + 1, leased_until = frame.now + frame.lease
    FROM unnest(ids, refs) AS f (execution_id, ref)
    WHERE a.execution_id = f.execution_id AND a.ref = f.ref;
    RETURN found;
END $$;

CREATE FUNCTION {schema}.claim_activities_part_{code}(
    frame {schema}.frame_{code}, worker text, queues text[], count bigint, token text, cancelled jsonb
)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found bigint;
    more int := 1;
    queue text;
    tasks jsonb;
BEGIN
    -- A call whose answer was lost is repeated, and finds what it has leased.
    IF NOT EXISTS (SELECT FROM {schema}.activities a WHERE a.owner = frame.owner AND a.claim = token) THEN
        found := {schema}.claim_activities_lease_{code}(frame, worker, queues, count, token, cancelled);
        IF found > 0 THEN
            FOREACH queue IN ARRAY queues LOOP
                PERFORM {schema}.notices_due_{code}(frame, queue, frame.now + frame.lease);
            END LOOP;
        END IF;
        IF found < count THEN
            more := 0;
            FOREACH queue IN ARRAY queues LOOP
                IF {schema}.activities_wait_in_{code}(frame, queue) THEN more := 2; END IF;
            END LOOP;
        END IF;
    END IF;
    SELECT jsonb_agg(
        jsonb_build_array(s.entity_id, a.execution_id, a.epoch, a.ref, a.attempt, a.deliveries - 1, a.request, a.details)
        ORDER BY a.ready_at & 1152921504606846975, a.turn
    ) INTO tasks
    FROM {schema}.activities a JOIN {schema}.states s ON s.execution_id = a.execution_id
    WHERE a.owner = frame.owner AND a.claim = token;
    RETURN jsonb_build_array(more) || coalesce(tasks, '[]');
END $$;

CREATE FUNCTION {schema}.claim_activities_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        list := array_append(list, {schema}.claim_activities_part_{code}(
            frame, part ->> 0, ARRAY(SELECT jsonb_array_elements_text(part -> 1)), (part ->> 2)::bigint, part ->> 3,
            part -> 4));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
