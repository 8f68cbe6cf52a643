-- Delete executions of an entity, open or closed, unless one of them has changed; the answer is whether they were deleted.
-- part: entity id; executions, oldest first: id and version (shared/transfer.sql)
-- tables: those of purge.sql
-- locks: the states in the order of entity ids, then the rest

CREATE FUNCTION {schema}.remove_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    same boolean;
    replies jsonb := '[]';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(
        SELECT wanted ->> 0 FROM jsonb_array_elements(parts) AS one, jsonb_array_elements(one -> 1) AS wanted));
    FOR part IN SELECT value FROM jsonb_array_elements(parts) LOOP
        same := {schema}.transfer_is_unchanged_{code}(part ->> 0, part -> 1);
        IF same THEN
            PERFORM {schema}.purge_delete_{code}(frame, one ->> 0) FROM jsonb_array_elements(part -> 1) AS one;
        END IF;
        replies := replies || to_jsonb(same);
    END LOOP;
    RETURN QUERY SELECT {schema}.notices_send_{code}(frame), replies;
END $$;
