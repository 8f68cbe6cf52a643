-- Commit steps: each only extends the log of a running instance, and claims what it schedules, on one queue, all of it covered
-- by the lease, which it keeps. Most commits are steps, so they have a path of their own, which equals the one of
-- shared/commits.sql and costs a fraction of it.
-- part: an element of each array: entity id, execution id, epoch, base seq, wake, the activities that the lease covers then (as
--   stored), the queue of the new ones (null for none), the number of events; types and bodies of all events in turn
-- answer: 1; null if anything about the instance is unusual, and nothing was changed: then `commit` decides
-- tables: states, events; reads activities
-- locks: the states in the order of entity ids

CREATE FUNCTION {schema}.step_{code}(
    moment bigint, lease bigint, owner text, entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[],
    wakes bigint[], covereds text[], queues text[], counts bigint[], types text[], bodies text[],
    OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ CONSTANT bigint := coalesce(moment, {schema}.frame_clock_{code}()) * 1000 + 999;
    key CONSTANT bigint := {schema}.log_key_{code}();
    size CONSTANT int := cardinality(execution_ids);
    done bigint[];
BEGIN
    IF size > 1 THEN PERFORM {schema}.locks_take_{code}(execution_ids); END IF;
    WITH part AS MATERIALIZED (
        SELECT p.*, (sum(p.count) OVER (ORDER BY p.number))::bigint - p.count AS first
        FROM unnest(entity_ids, execution_ids, epochs, base_seqs, wakes, covereds, queues, counts)
            WITH ORDINALITY p (entity_id, execution_id, epoch, base_seq, wake, covered, queue, count, number)
    ), changed AS (
        UPDATE {schema}.states s SET
            last_seq = s.last_seq + p.count, feed_key = greatest(s.feed_key, key), covered = p.covered,
            commits = s.commits + 1, deliveries = 0, last_failure = '', wake_at = NULL
        FROM part p
        WHERE s.execution_id = p.execution_id AND s.entity_id = p.entity_id AND s.epoch = p.epoch
            AND s.last_seq = p.base_seq AND s.wake = p.wake AND s.leased_until IS NOT NULL AND s.status = 'running'
            AND s.paused IS NULL AND (p.queue IS NULL OR NOT EXISTS (
                SELECT FROM {schema}.activities a WHERE a.queue = p.queue AND a.offered_at <= now_
            ))
        RETURNING s.execution_id, s.feed_key, p.base_seq, p.first, p.count, p.number
    ), logged AS (
        INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
        SELECT c.execution_id, c.base_seq + n, c.feed_key, types[c.first + n], bodies[c.first + n]
        FROM changed c CROSS JOIN LATERAL generate_series(1, c.count) n
        ORDER BY c.number, n
    )
    SELECT array_agg(c.number) INTO done FROM changed c;
    notices := '{}';
    IF done IS NULL THEN
        answers := to_jsonb(array_fill(NULL::int, ARRAY[size]));
    ELSE
        answers := CASE
            WHEN cardinality(done) = size THEN to_jsonb(array_fill(1, ARRAY[size]))
            ELSE (SELECT jsonb_agg(CASE WHEN n = ANY (done) THEN 1 END ORDER BY n) FROM generate_series(1, size) n)
        END;
        IF {schema}.notices_followed_{code}() THEN
            PERFORM {schema}.notices_log_{code}(NULL, execution_ids[n]) FROM unnest(done) n;
            PERFORM {schema}.notices_send_{code}({schema}.frame_begin_{code}(moment, lease, owner));
        END IF;
    END IF;
    RETURN NEXT;
END $$;
