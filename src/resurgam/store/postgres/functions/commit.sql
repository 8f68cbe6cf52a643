-- Apply outcomes of advances, each whole or not at all.
-- part: see shared/commits.sql; entities and settles name the entities and the promises that its effects address
-- answer: the reason of a refusal, or [wake, entries of the inbox as [id, body], refs of claimed activities]
-- tables: those of shared/commits.sql
-- locks: the states of all parts and of the instances that their effects address, in the order of entity ids; then topics

CREATE FUNCTION {schema}.commit_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    found jsonb[] := '{}';
    part jsonb;
BEGIN
    IF jsonb_array_length(parts) > 1 OR parts -> 0 ? 'entities' OR parts -> 0 ? 'settles' THEN
        PERFORM {schema}.locks_take_{code}(
            ARRAY(SELECT p ->> 'execution_id' FROM jsonb_array_elements(parts) p),
            ARRAY(SELECT jsonb_array_elements_text(p -> 'entities') FROM jsonb_array_elements(parts) p),
            ARRAY(SELECT jsonb_array_elements_text(p -> 'settles') FROM jsonb_array_elements(parts) p)
        );
    END IF;
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        found := array_append(found, {schema}.commits_apply_{code}(frame, part));
    END LOOP;
    answers := to_jsonb(found);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
