-- Return whether there is more in the feed, more messages on a topic, or no longer a query that waits for its result.
-- part: 'feed', key, position; or 'topic', name, number; or 'query', id
-- answer: whether there is; null if events are there which the feed does not return yet, because older transactions are open
-- tables: reads events, messages, queries
-- locks: none

CREATE FUNCTION {schema}.grown_feed_{code}(after_key bigint, after_position bigint)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    bound CONSTANT bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint + {schema}.feed_offset();
    next_key bigint;
BEGIN
    SELECT e.feed_key INTO next_key FROM {schema}.events e
    WHERE (e.feed_key, e.position) > (after_key, after_position) ORDER BY e.feed_key, e.position LIMIT 1;
    RETURN CASE WHEN next_key IS NULL THEN false WHEN next_key < bound THEN true END;
END $$;

CREATE FUNCTION {schema}.grown_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE part ->> 0
        WHEN 'feed' THEN {schema}.grown_feed_{code}((part ->> 1)::bigint, (part ->> 2)::bigint)
        WHEN 'topic' THEN EXISTS (
            SELECT FROM {schema}.messages m WHERE m.topic = part ->> 1 AND m.number > (part ->> 2)::bigint)
        ELSE NOT EXISTS (
            SELECT FROM {schema}.queries q WHERE q.query_id = part ->> 1 AND NOT q.completed AND q.until > frame.now)
    END;
END $$;

CREATE FUNCTION {schema}.grown_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
BEGIN
    answers := (
        SELECT jsonb_agg({schema}.grown_part_{code}(frame, one) ORDER BY number)
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, number)
    );
    RETURN NEXT;
END $$;
