-- Return what kinds of work a worker could claim in some queues, when something there becomes claimable by itself, and the moment
-- of the call. Nothing is claimed or changed.
-- part: worker, queues, whether instances, activities and queries count
-- answer: whether there are instances, activities and queries, as far as they count; the next moment or null, the moment of the
--   call
-- tables: reads states, tried, activities, queries, announced
-- locks: none

-- Return the first moment after this one at which something of any kind becomes claimable by itself. It is no later than the one
-- that was last announced for a queue, even if that is void by now: what comes after an announced moment is not announced.
CREATE FUNCTION {schema}.look_due_{code}(frame {schema}.frame_{code}, queues text[])
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
BEGIN
    RETURN (
        SELECT min(least(
            (SELECT (s.offered_at + 999) / 1000 FROM {schema}.states s
             WHERE s.queue = q.queue AND s.offered_at > until AND s.status <> 'diverged' ORDER BY s.offered_at LIMIT 1),
            (SELECT (s.offered_at + 999) / 1000 FROM {schema}.states s
             WHERE s.queue = q.queue AND s.offered_at > until AND s.status = 'diverged' ORDER BY s.offered_at LIMIT 1),
            (SELECT (a.offered_at + 999) / 1000 FROM {schema}.activities a
             WHERE a.queue = q.queue AND a.offered_at > until ORDER BY a.offered_at LIMIT 1),
            (SELECT min(y.leased_until) FROM {schema}.queries y
             WHERE y.queue = q.queue AND NOT y.completed AND y.leased_until > frame.now),
            (SELECT n.moment FROM {schema}.announced n WHERE n.queue = q.queue AND n.moment > frame.now)
        ))
        FROM unnest(queues) AS q (queue)
    );
END $$;

CREATE FUNCTION {schema}.look_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    queues CONSTANT text[] := ARRAY(SELECT jsonb_array_elements_text(part -> 1));
    instances CONSTANT boolean := (part ->> 2)::boolean AND {schema}.claim_left_{code}(frame, part ->> 0, queues);
    activities CONSTANT boolean := (part ->> 3)::boolean AND EXISTS (
        SELECT FROM unnest(queues) AS q (queue) WHERE {schema}.activities_wait_in_{code}(frame, q.queue));
    waiting CONSTANT boolean := (part ->> 4)::boolean AND EXISTS (
        SELECT FROM {schema}.queries y
        WHERE y.queue = ANY (queues) AND NOT y.completed AND y.leased_until <= frame.now AND y.until > frame.now);
BEGIN
    RETURN jsonb_build_array(
        jsonb_build_array(instances, activities, waiting), {schema}.look_due_{code}(frame, queues), frame.now);
END $$;

CREATE FUNCTION {schema}.look_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
BEGIN
    answers := (
        SELECT jsonb_agg({schema}.look_part_{code}(frame, one) ORDER BY number)
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, number)
    );
    RETURN NEXT;
END $$;
