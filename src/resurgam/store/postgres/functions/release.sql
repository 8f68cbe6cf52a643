-- End leases on instances or, with a ref, on their activities, without an outcome.
-- part: entity id, execution id, epoch, ref or null, failed or null, final
-- answer: the reason of a refusal, or 1
-- tables: states, activities, announced; reads events
-- locks: the states in the order of entity ids, then their activities

CREATE FUNCTION {schema}.release_activity_{code}(frame {schema}.frame_{code}, state {schema}.states, part jsonb)
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
    PERFORM {schema}.activities_release_{code}(
        frame, activity, part ->> 4 IS NOT NULL, CASE WHEN (part ->> 5)::boolean THEN part ->> 4 END);
    RETURN '1';
END $$;

CREATE FUNCTION {schema}.release_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    reason text;
BEGIN
    SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = part ->> 1 AND s.entity_id = part ->> 0;
    IF part ->> 3 IS NOT NULL THEN RETURN {schema}.release_activity_{code}(frame, state, part); END IF;
    reason := {schema}.leases_refusal_{code}(state, part ->> 0, (part ->> 2)::bigint);
    IF reason IS NOT NULL THEN RETURN to_jsonb(reason); END IF;
    PERFORM {schema}.instances_save_{code}(
        {schema}.leases_release_{code}(frame, state, part ->> 4, (part ->> 5)::boolean));
    RETURN '1';
END $$;

CREATE FUNCTION {schema}.release_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        list := array_append(list, {schema}.release_part_{code}(frame, part));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
