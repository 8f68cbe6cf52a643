-- Delete the values of keys.
-- part: key
-- tables: stored_values
-- locks: the rows in the order of their keys

CREATE FUNCTION {schema}.delete_value_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.stored_values v WHERE v.key IN (
        SELECT x.key FROM {schema}.stored_values x WHERE x.key IN (SELECT jsonb_array_elements_text(parts))
        ORDER BY x.key FOR UPDATE);
    RETURN QUERY SELECT '{}'::text[], (SELECT jsonb_agg(NULL::text) FROM jsonb_array_elements(parts));
END $$;
