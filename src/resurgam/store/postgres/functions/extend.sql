-- Renew leases on instances or, with a ref, on their activities.
-- part: entity id, execution id, epoch, ref, wake, details, heartbeat_at; ref, details and heartbeat_at may be null
-- answer: the reason of a refusal, or [wake, entries of the inbox since]
-- tables: states, activities, announced; reads inbox, events
-- locks: the states in the order of entity ids, then their activities

CREATE FUNCTION {schema}.extend_activity_{code}(frame {schema}.frame_{code}, state {schema}.states, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch CONSTANT bigint := (part ->> 2)::bigint;
    activity {schema}.activities;
    covered text := state.covered;
    reason text;
BEGIN
    IF state.execution_id IS NOT NULL THEN
        IF epoch = 0 THEN state := {schema}.activities_lease_named_{code}(frame, state, (part ->> 3)::bigint); END IF;
        IF state.covered IS DISTINCT FROM covered THEN PERFORM {schema}.instances_save_{code}(state); END IF;
        SELECT * INTO activity FROM {schema}.activities a
        WHERE a.execution_id = state.execution_id AND a.ref = (part ->> 3)::bigint FOR UPDATE;
    END IF;
    reason := {schema}.activities_refusal_{code}(activity, epoch);
    IF reason IS NOT NULL THEN RETURN to_jsonb(reason); END IF;
    PERFORM {schema}.activities_extend_{code}(frame, activity, part ->> 5, (part ->> 6)::bigint);
    RETURN '[0, []]';
END $$;

-- Renew the leases on instances that are still held, all at once, and return the answers by the number of their part.
CREATE FUNCTION {schema}.extend_instances_{code}(frame {schema}.frame_{code}, parts jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := frame.now + frame.lease;
    answers jsonb;
    queues text[];
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT p.number, p.one ->> 0 AS entity_id, p.one ->> 1 AS execution_id, (p.one ->> 2)::bigint AS epoch,
               (p.one ->> 4)::bigint AS wake
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, number) WHERE p.one ->> 3 IS NULL
    ), extended AS (
        UPDATE {schema}.states s SET leased_until = until FROM asked a
        WHERE s.execution_id = a.execution_id AND s.entity_id = a.entity_id AND s.epoch = a.epoch
            AND s.leased_until IS NOT NULL
        RETURNING s.execution_id, s.entity_id, s.epoch, s.queue, s.wake
    )
    SELECT array_agg(DISTINCT e.queue) FILTER (WHERE e.queue IS NOT NULL), jsonb_object_agg(a.number, CASE
        WHEN e.execution_id IS NOT NULL THEN jsonb_build_array(
            e.wake, CASE WHEN e.wake > a.wake THEN {schema}.inbox_since_{code}(e.execution_id, a.wake) ELSE '[]' END)
        ELSE to_jsonb({schema}.leases_refusal_{code}(s, a.entity_id, a.epoch))
    END)
    INTO queues, answers
    FROM asked a
    LEFT JOIN extended e ON e.execution_id = a.execution_id AND e.entity_id = a.entity_id AND e.epoch = a.epoch
    LEFT JOIN {schema}.states s ON s.execution_id = a.execution_id;
    PERFORM {schema}.notices_due_{code}(frame, queue, until) FROM unnest(queues) queue;
    RETURN coalesce(answers, '{}');
END $$;

CREATE FUNCTION {schema}.extend_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    extended jsonb;
    state {schema}.states;
    part jsonb;
    number bigint := 0;
    list jsonb[] := '{}';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    extended := {schema}.extend_instances_{code}(frame, parts);
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        number := number + 1;
        IF part ->> 3 IS NULL THEN
            list := array_append(list, extended -> number::text);
        ELSE
            SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = part ->> 1 AND s.entity_id = part ->> 0;
            list := array_append(list, {schema}.extend_activity_{code}(frame, state, part));
        END IF;
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
