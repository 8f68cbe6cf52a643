-- Lease queries, oldest first.
-- part: queues, limit
-- answer: 1 if there may be more, otherwise 0; then of each its id, entity id, execution id, queue, name, input as JSON, deadline
-- tables: queries, announced
-- locks: the queries that it leases, and expired ones, with SKIP LOCKED: it waits for none

CREATE FUNCTION {schema}.claim_queries_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    claimed jsonb;
    replies jsonb := '[]';
    queue text;
BEGIN
    PERFORM {schema}.queries_drop_expired_{code}(frame);
    FOR part IN SELECT value FROM jsonb_array_elements(parts) LOOP
        WITH free AS (
            SELECT q.query_id FROM {schema}.queries q
            WHERE NOT q.completed AND q.leased_until <= frame.now AND q.until > frame.now
              AND q.queue IN (SELECT jsonb_array_elements_text(part -> 0))
            ORDER BY q.position LIMIT (part ->> 1)::bigint FOR UPDATE SKIP LOCKED
        ), leased AS (
            UPDATE {schema}.queries q SET leased_until = frame.now + frame.lease FROM free WHERE q.query_id = free.query_id
            RETURNING q.*
        )
        SELECT coalesce(jsonb_agg(jsonb_build_array(
            l.query_id, l.entity_id, l.execution_id, l.queue, l.name, l.input, l.until) ORDER BY l.position), '[]')
        INTO claimed FROM leased l;
        FOR queue IN SELECT DISTINCT one ->> 3 FROM jsonb_array_elements(claimed) AS one LOOP
            PERFORM {schema}.notices_due_{code}(frame, queue, frame.now + frame.lease);
        END LOOP;
        replies := replies || jsonb_build_array(
            jsonb_build_array((jsonb_array_length(claimed) >= (part ->> 1)::bigint)::int) || claimed);
    END LOOP;
    RETURN QUERY SELECT {schema}.notices_send_{code}(frame), replies;
END $$;
