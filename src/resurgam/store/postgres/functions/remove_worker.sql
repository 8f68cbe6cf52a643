-- Remove workers that have stopped; unknown ones are ignored.
-- part: id
-- tables: workers
-- locks: the rows in the order of their ids

CREATE FUNCTION {schema}.remove_worker_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.workers w WHERE w.worker_id IN (
        SELECT x.worker_id FROM {schema}.workers x WHERE x.worker_id IN (SELECT jsonb_array_elements_text(parts))
        ORDER BY x.worker_id FOR UPDATE);
    RETURN QUERY SELECT '{}'::text[], (SELECT jsonb_agg(NULL::text) FROM jsonb_array_elements(parts));
END $$;
