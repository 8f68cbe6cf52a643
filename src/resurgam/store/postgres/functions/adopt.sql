-- Adopt executions of one entity, all of them or none, if what the plan was made from still holds; the answer is whether it does.
-- part: entity id; its executions, oldest first: id and whether it is closed; promises: id and the execution that holds it, or
--   null; the order of all its executions afterwards; copies to insert, see shared/transfer.sql; those of them that are archived
--   here: their rows are deleted first
-- tables: instances, states, instance_tags, events, inbox, activities, answers, promises
-- locks: the states of the executions of all entities and of the holders of all promises, in the order of entity ids

CREATE FUNCTION {schema}.adopt_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    replies jsonb := '[]';
BEGIN
    PERFORM {schema}.locks_take_{code}(
        ARRAY(SELECT i.execution_id FROM {schema}.instances i
              WHERE i.entity_id IN (SELECT one ->> 0 FROM jsonb_array_elements(parts) AS one)),
        '{}', ARRAY(SELECT held ->> 0 FROM jsonb_array_elements(parts) AS one, jsonb_array_elements(one -> 2) AS held));
    FOR part IN SELECT value FROM jsonb_array_elements(parts) LOOP
        replies := replies || to_jsonb({schema}.transfer_adopt_{code}(frame, part));
    END LOOP;
    RETURN QUERY SELECT {schema}.notices_send_{code}(frame), replies;
END $$;

CREATE FUNCTION {schema}.transfer_adopt_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    copy jsonb;
    inserted integer := 0;
    id text;
BEGIN
    IF part -> 1 IS DISTINCT FROM (
        SELECT coalesce(jsonb_agg(jsonb_build_array(i.execution_id, i.closed_at IS NOT NULL) ORDER BY i.position), '[]')
        FROM {schema}.instances i WHERE i.entity_id = part ->> 0
    ) OR EXISTS (
        SELECT 1 FROM jsonb_array_elements(part -> 2) AS held
        LEFT JOIN {schema}.promises p ON p.promise_id = held ->> 0 WHERE p.execution_id IS DISTINCT FROM held ->> 1
    ) OR EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(part -> 5) AS restored
        JOIN {schema}.instances i ON i.execution_id = restored WHERE i.archived IS NULL OR i.entity_id <> part ->> 0
    ) THEN
        RETURN false;
    END IF;
    PERFORM {schema}.purge_delete_{code}(frame, restored) FROM jsonb_array_elements_text(part -> 5) AS restored;
    -- The open one comes first: another can stand in its way only, as long as nothing else is written.
    FOR copy IN SELECT value FROM jsonb_array_elements(part -> 4) ORDER BY value ->> 'closed_at' IS NOT NULL LOOP
        IF NOT {schema}.transfer_insert_{code}(frame, copy) THEN
            IF inserted = 0 THEN RETURN false; END IF;
            RAISE serialization_failure USING MESSAGE = 'an execution was adopted by another call at the same time';
        END IF;
        inserted := inserted + 1;
    END LOOP;
    FOR copy IN SELECT value FROM jsonb_array_elements(part -> 4) WITH ORDINALITY AS c (value, number) ORDER BY c.number LOOP
        PERFORM {schema}.transfer_insert_log_{code}(copy);
    END LOOP;
    IF part -> 3 <> (
        SELECT coalesce(jsonb_agg(i.execution_id ORDER BY i.position), '[]')
        FROM {schema}.instances i WHERE i.entity_id = part ->> 0
    ) THEN
        FOR id IN SELECT value FROM jsonb_array_elements_text(part -> 3) LOOP
            UPDATE {schema}.instances i SET position = DEFAULT WHERE i.execution_id = id;
        END LOOP;
    END IF;
    RETURN true;
END $$;
