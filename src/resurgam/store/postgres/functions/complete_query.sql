-- Keep the first result of each query that waits for one; others are ignored.
-- part: query id, result as JSON, failure as JSON or null
-- tables: queries
-- locks: the rows in the order of their ids

CREATE FUNCTION {schema}.complete_query_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
BEGIN
    FOR part IN SELECT value FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (value, number)
                ORDER BY (value ->> 0) COLLATE "C", number LOOP
        UPDATE {schema}.queries q SET completed = true, result = part ->> 1, failure = part ->> 2
        WHERE q.query_id = part ->> 0 AND NOT q.completed AND q.until > frame.now;
        PERFORM {schema}.notices_note_{code}('query', part ->> 0);
    END LOOP;
    RETURN QUERY SELECT {schema}.notices_send_{code}(frame), (SELECT jsonb_agg(NULL::text) FROM jsonb_array_elements(parts));
END $$;
