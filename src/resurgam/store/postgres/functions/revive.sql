-- Offer dead letters again, an instance and its activities, and a parked run to the workers that tried it.
-- part: entity id, execution id
-- answer: how many, or -1 if there is no such execution
-- tables: states, tried, activities, announced
-- locks: the states in the order of entity ids, then their activities

CREATE FUNCTION {schema}.revive_part_{code}(frame {schema}.frame_{code}, entity text, id text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    count bigint := 0;
BEGIN
    SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = id AND s.entity_id = entity;
    IF NOT FOUND THEN RETURN -1; END IF;
    IF state.dead_letter IS NOT NULL OR state.parked IS NOT NULL THEN
        count := 1;
        state.dead_letter := NULL;
        state.deliveries := 0;
        PERFORM {schema}.leases_forget_tries_{code}(state);
        IF state.leased_until IS NULL THEN
            state := {schema}.leases_free_{code}(frame, state, true);
        ELSIF state.leased_until <= frame.now THEN
            -- The workers that tried it have not heard of it when its lease expired.
            PERFORM {schema}.notices_work_{code}(state.queue);
        END IF;
        PERFORM {schema}.instances_save_{code}(state);
    END IF;
    RETURN count + {schema}.activities_revive_{code}(frame, state);
END $$;

CREATE FUNCTION {schema}.revive_{code}(
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
        list := array_append(list, to_jsonb({schema}.revive_part_{code}(frame, part ->> 0, part ->> 1)));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
