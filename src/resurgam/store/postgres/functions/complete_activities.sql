-- Put the result of an attempt into the inbox of its instance, and schedule the next attempt if there is one.
-- part: entity id, execution id, epoch, ref, attempt, entry, moment of the next attempt, details, heartbeat_at; the last three
--   may be null
-- answer: the reason of a refusal, or 1
-- tables: states, activities, inbox, announced
-- locks: the states in the order of entity ids, then their activities

CREATE FUNCTION {schema}.complete_activities_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch CONSTANT bigint := (part ->> 2)::bigint;
    state {schema}.states;
    activity {schema}.activities;
    covered text;
    reason text;
BEGIN
    SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = part ->> 1 AND s.entity_id = part ->> 0;
    IF FOUND THEN
        covered := state.covered;
        IF epoch = 0 THEN state := {schema}.activities_lease_named_{code}(frame, state, (part ->> 3)::bigint); END IF;
        SELECT * INTO activity FROM {schema}.activities a
        WHERE a.execution_id = state.execution_id AND a.ref = (part ->> 3)::bigint FOR UPDATE;
    END IF;
    reason := {schema}.activities_refusal_{code}(activity, epoch, (part ->> 4)::bigint);
    IF reason IS NOT NULL THEN
        IF state.covered IS DISTINCT FROM covered THEN PERFORM {schema}.instances_save_{code}(state); END IF;
        RETURN to_jsonb(reason);
    END IF;
    IF part ->> 6 IS NOT NULL THEN
        PERFORM {schema}.activities_retry_{code}(frame, activity, (part ->> 6)::bigint, part ->> 7, (part ->> 8)::bigint);
    ELSE
        DELETE FROM {schema}.activities a WHERE a.execution_id = activity.execution_id AND a.ref = activity.ref;
    END IF;
    state := {schema}.inbox_put_{code}(frame, state, part -> 5);
    PERFORM {schema}.instances_save_{code}(state);
    RETURN '1';
END $$;

-- Put final results of leased activities into inboxes, all at once; equals `complete_activities_part` for each of them.
CREATE FUNCTION {schema}.complete_activities_at_once_{code}(frame {schema}.frame_{code}, parts jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    accepted jsonb;
    state {schema}.states;
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT p.number, s.execution_id, (p.one ->> 2)::bigint AS epoch, (p.one ->> 3)::bigint AS ref, p.one -> 5 AS entry
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, number)
        JOIN {schema}.states s ON s.execution_id = p.one ->> 1 AND s.entity_id = p.one ->> 0
    ), answered AS (
        DELETE FROM {schema}.activities a USING asked k
        WHERE a.execution_id = k.execution_id AND a.ref = k.ref AND a.epoch = k.epoch AND a.leased_until IS NOT NULL
        RETURNING k.number, k.execution_id, k.entry
    ), put AS (
        INSERT INTO {schema}.inbox (execution_id, wake, type, body, overtakes)
        SELECT d.execution_id, s.wake + row_number() OVER (PARTITION BY d.execution_id ORDER BY d.number),
               d.entry ->> 0, d.entry ->> 1, (d.entry ->> 2)::boolean
        FROM answered d JOIN {schema}.states s ON s.execution_id = d.execution_id
    )
    SELECT jsonb_object_agg(d.number, d.execution_id) INTO accepted FROM answered d;
    FOR state IN
        UPDATE {schema}.states s SET
            wake = s.wake + n.count,
            ready_at = CASE WHEN n.readies THEN {schema}.frame_ready_{code}(frame) ELSE s.ready_at END,
            turn = CASE WHEN n.readies THEN nextval('{schema}.turns') ELSE s.turn END
        FROM (
            SELECT k.execution_id, count(*) AS count, bool_and(
                k.leased_until IS NULL AND k.ready_at IS NULL AND k.status <> 'scheduled') AS readies
            FROM jsonb_each_text(accepted) d JOIN {schema}.states k ON k.execution_id = d.value GROUP BY k.execution_id
        ) n
        WHERE s.execution_id = n.execution_id
        RETURNING s.*
    LOOP
        PERFORM {schema}.notices_inbox_{code}(frame, state);
        IF state.leased_until IS NULL AND state.paused IS NULL AND state.dead_letter IS NULL THEN
            PERFORM {schema}.notices_offer_{code}(state);
        END IF;
    END LOOP;
    RETURN (
        SELECT jsonb_agg(CASE
            WHEN accepted ? number::text THEN '1'::jsonb
            ELSE to_jsonb({schema}.activities_refusal_{code}(a, (one ->> 2)::bigint))
        END ORDER BY number)
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, number)
        LEFT JOIN {schema}.states s ON s.execution_id = p.one ->> 1 AND s.entity_id = p.one ->> 0
        LEFT JOIN {schema}.activities a ON a.execution_id = s.execution_id AND a.ref = (p.one ->> 3)::bigint
    );
END $$;

CREATE FUNCTION {schema}.complete_activities_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    IF NOT EXISTS (
        SELECT FROM jsonb_array_elements(parts) one WHERE one ->> 2 = '0' OR one ->> 6 IS NOT NULL
    ) THEN
        answers := {schema}.complete_activities_at_once_{code}(frame, parts);
    ELSE
        FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
            list := array_append(list, {schema}.complete_activities_part_{code}(frame, part));
        END LOOP;
        answers := to_jsonb(list);
    END IF;
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
