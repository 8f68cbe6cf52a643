-- Queries for workers, each kept until its deadline, answered or not.

-- Delete a few queries that have expired, with their results; those that others have locked are left to them.
CREATE FUNCTION {schema}.queries_drop_expired_{code}(frame {schema}.frame_{code})
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.queries q WHERE q.query_id IN (
        SELECT x.query_id FROM {schema}.queries x WHERE x.until <= frame.now
        ORDER BY x.until LIMIT 100 FOR UPDATE SKIP LOCKED);
END $$;
