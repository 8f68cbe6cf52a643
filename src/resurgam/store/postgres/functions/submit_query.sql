-- Offer queries to the workers of their queues; the answer is whether the execution is there. One that is known stays as it is.
-- part: query id, entity id, execution id, queue, name, input as JSON, deadline
-- tables: reads states; inserts queries, and deletes a few that have expired
-- locks: the states, shared, in the order of entity ids; expired queries with SKIP LOCKED

CREATE FUNCTION {schema}.submit_query_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    replies jsonb := '[]';
    known boolean;
BEGIN
    PERFORM {schema}.queries_drop_expired_{code}(frame);
    -- Shared, so that a purge either waits for these queries or is seen by them.
    PERFORM FROM {schema}.states s WHERE s.execution_id IN (SELECT one ->> 2 FROM jsonb_array_elements(parts) AS one)
    ORDER BY s.entity_id, s.execution_id FOR KEY SHARE;
    FOR part IN SELECT value FROM jsonb_array_elements(parts) LOOP
        known := EXISTS (SELECT 1 FROM {schema}.states s WHERE s.execution_id = part ->> 2 AND s.entity_id = part ->> 1);
        IF known THEN
            INSERT INTO {schema}.queries (query_id, entity_id, execution_id, queue, name, input, until)
            VALUES (part ->> 0, part ->> 1, part ->> 2, part ->> 3, part ->> 4, part ->> 5, (part ->> 6)::bigint)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN PERFORM {schema}.notices_work_{code}(part ->> 3); END IF;
        END IF;
        replies := replies || to_jsonb(known);
    END LOOP;
    RETURN QUERY SELECT {schema}.notices_send_{code}(frame), replies;
END $$;
