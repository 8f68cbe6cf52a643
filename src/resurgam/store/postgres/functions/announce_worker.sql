-- Register a worker, or renew it; the answer is all live workers, in the order in which they started: body, start, last seen.
-- part: id, announcement as JSON, milliseconds for which it is known
-- tables: workers
-- locks: those that have expired, with SKIP LOCKED, then the rows in the order of their ids

CREATE FUNCTION {schema}.announce_worker_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    live jsonb;
BEGIN
    DELETE FROM {schema}.workers w WHERE w.worker_id IN (
        SELECT x.worker_id FROM {schema}.workers x WHERE x.expires_at <= frame.now FOR UPDATE SKIP LOCKED);
    FOR part IN SELECT value FROM jsonb_array_elements(parts) ORDER BY value ->> 0 LOOP
        INSERT INTO {schema}.workers AS w (worker_id, owner, body, started_at, seen_at, expires_at)
        VALUES (part ->> 0, frame.owner, part ->> 1, frame.now, frame.now, frame.now + (part ->> 2)::bigint)
        ON CONFLICT (worker_id) DO UPDATE
        SET owner = excluded.owner, body = excluded.body, seen_at = excluded.seen_at, expires_at = excluded.expires_at,
            started_at = CASE WHEN w.expires_at > frame.now THEN w.started_at ELSE excluded.started_at END;
    END LOOP;
    SELECT coalesce(jsonb_agg(jsonb_build_array(w.body, w.started_at, w.seen_at) ORDER BY w.started_at, w.worker_id), '[]')
    INTO live FROM {schema}.workers w WHERE w.expires_at > frame.now;
    RETURN QUERY SELECT '{}'::text[], (SELECT jsonb_agg(live) FROM jsonb_array_elements(parts));
END $$;
