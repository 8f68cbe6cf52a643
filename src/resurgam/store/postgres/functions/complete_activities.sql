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

CREATE FUNCTION {schema}.complete_activities_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    answers := '[]';
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        answers := answers || {schema}.complete_activities_part_{code}(frame, part);
    END LOOP;
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
