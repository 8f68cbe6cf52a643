-- Append the entry that says that a complete execution is being archived, if it follows the last one and nothing is to come.
-- part: entity id, execution id, seq, type and body of the entry
-- answer: whether it was appended
-- tables: events, states; reads instances, inbox
-- locks: the states in the order of entity ids

CREATE FUNCTION {schema}.reserve_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
BEGIN
    SELECT s.* INTO state FROM {schema}.states s JOIN {schema}.instances i USING (execution_id)
    WHERE s.execution_id = part ->> 1 AND s.entity_id = part ->> 0 AND i.deactivated AND i.archived IS NULL
        AND s.last_seq + 1 = (part ->> 2)::bigint
        AND NOT EXISTS (SELECT FROM {schema}.inbox n WHERE n.execution_id = s.execution_id);
    IF NOT FOUND THEN RETURN false; END IF;
    state := {schema}.log_append_{code}(frame, state, jsonb_build_array(jsonb_build_array(part -> 3, part -> 4)));
    PERFORM {schema}.instances_save_{code}(state);
    RETURN true;
END $$;

CREATE FUNCTION {schema}.reserve_{code}(
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
        answers := answers || to_jsonb({schema}.reserve_part_{code}(frame, part));
    END LOOP;
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
