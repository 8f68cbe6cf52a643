-- Commit steps: each only extends the log of a running instance, and claims what it schedules, on one queue, all of it covered
-- by the lease, which it keeps. Most commits are steps, so they have a path of their own, which equals the one of
-- shared/commits.sql and costs a fraction of it: one update, one insert.
-- part: an element of each array: entity id, execution id, epoch, base seq, wake, the activities that the lease covers then (as
--   stored), the queue of the new ones (null for none), the number of events; execution ids, seqs, types
--   and bodies of all events in turn
--   repeated: the call may have been done before, and its answer lost
-- answer: 1; null if anything about the instance is unusual, and nothing was changed: then `commit` decides
-- tables: states, events; reads activities
-- locks: the states in the order of entity ids

-- Commit a step alone, as most are that nothing else is done beside: without arrays of one element.
CREATE FUNCTION {schema}.step_alone_{code}(
    moment bigint, lease bigint, owner text, entity text, id text, held_epoch bigint, base bigint, seen bigint, runs text,
    work_queue text, types text[], bodies text[], repeated boolean, OUT notices text[], OUT answers jsonb
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    key bigint;
BEGIN
    notices := '{}';
    UPDATE {schema}.states s SET
        last_seq = base + cardinality(types), covered = runs, commits = s.commits + 1, deliveries = 0, last_failure = '',
        wake_at = NULL, feed_key = greatest(s.feed_key, pg_current_xact_id()::text::bigint + {schema}.feed_offset())
    WHERE s.execution_id = id AND s.entity_id = entity AND s.epoch = held_epoch AND s.last_seq = base AND s.wake = seen
        AND s.leased_until IS NOT NULL AND s.status = 'running' AND s.paused IS NULL
        AND NOT EXISTS (
            SELECT FROM {schema}.activities a WHERE a.queue = work_queue
                AND a.offered_at <= coalesce(moment, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) * 1000 + 999
        )
    RETURNING s.feed_key INTO key;
    IF NOT FOUND THEN
        answers := CASE
            WHEN repeated AND {schema}.step_is_done_{code}(entity, id, held_epoch, base, bodies) THEN '[1]' ELSE '[null]'
        END;
        RETURN;
    END IF;
    INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
    SELECT id, base + e.number, key, e.type, e.body FROM unnest(types, bodies) WITH ORDINALITY e (type, body, number);
    answers := '[1]';
    IF {schema}.notices_followed_{code}() THEN
        PERFORM {schema}.notices_log_{code}(NULL, id);
        PERFORM {schema}.notices_send_{code}({schema}.frame_begin_{code}(moment, lease, owner));
    END IF;
END $$;

-- Return the numbers of the steps that were committed. They are looked up one after another, and so locked in the
-- order of entity ids.
CREATE FUNCTION {schema}.step_all_{code}(
    until bigint, key bigint, entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[], wakes bigint[],
    covereds text[], queues text[], counts bigint[], ids text[], seqs bigint[], types text[], bodies text[]
)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    busy text[] := ARRAY(
        SELECT q.queue FROM (SELECT DISTINCT queue FROM unnest(queues) queue) q
        WHERE EXISTS (SELECT FROM {schema}.activities a WHERE a.queue = q.queue AND a.offered_at <= until)
    );
    done bigint[];
    keys bigint[];
BEGIN
    WITH changed AS (
        UPDATE {schema}.states s SET
            last_seq = p.base_seq + p.count, feed_key = greatest(s.feed_key, key), covered = p.covered,
            commits = s.commits + 1, deliveries = 0, last_failure = '', wake_at = NULL
        FROM (
            SELECT * FROM unnest(entity_ids, execution_ids, epochs, base_seqs, wakes, covereds, queues, counts)
                WITH ORDINALITY u (entity_id, execution_id, epoch, base_seq, wake, covered, queue, count, number)
            ORDER BY u.entity_id COLLATE "C", u.number
        ) p
        WHERE s.execution_id = p.execution_id AND s.entity_id = p.entity_id AND s.epoch = p.epoch
            AND s.last_seq = p.base_seq AND s.wake = p.wake AND s.leased_until IS NOT NULL AND s.status = 'running'
            AND s.paused IS NULL AND (p.queue IS NULL OR p.queue <> ALL (busy))
        RETURNING s.feed_key, p.number
    )
    SELECT array_agg(c.number), array_agg(c.feed_key) INTO done, keys FROM changed c;
    PERFORM {schema}.log_extend_{code}(key, done, keys, counts, ids, seqs, types, bodies);
    RETURN done;
END $$;

-- Whether a step was committed before: then the log goes on with its events.
CREATE FUNCTION {schema}.step_is_done_{code}(entity text, id text, held_epoch bigint, base bigint, bodies text[])
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN cardinality(bodies) > 0 AND EXISTS (
        SELECT FROM {schema}.states s
        WHERE s.execution_id = id AND s.entity_id = entity AND s.epoch = held_epoch AND s.leased_until IS NOT NULL
            AND s.last_seq > base
    ) AND bodies = ARRAY(
        SELECT e.body FROM {schema}.events e
        WHERE e.execution_id = id AND e.seq > base AND e.seq <= base + cardinality(bodies) ORDER BY e.seq
    );
END $$;

-- Return an answer for each of several steps, of which only some were committed.
CREATE FUNCTION {schema}.step_answers_{code}(
    done bigint[], entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[], counts bigint[], bodies text[],
    repeated boolean
)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    answers jsonb := '[]';
    first bigint := 0;
BEGIN
    FOR n IN 1 .. cardinality(counts) LOOP
        answers := answers || CASE
            WHEN n = ANY (done) OR (repeated AND {schema}.step_is_done_{code}(
                entity_ids[n], execution_ids[n], epochs[n], base_seqs[n], bodies[first + 1 : first + counts[n]]
            )) THEN jsonb '1' ELSE jsonb 'null'
        END;
        first := first + counts[n];
    END LOOP;
    RETURN answers;
END $$;

CREATE FUNCTION {schema}.step_{code}(
    moment bigint, lease bigint, owner text, entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[],
    wakes bigint[], covereds text[], queues text[], counts bigint[], ids text[], seqs bigint[], types text[], bodies text[],
    repeated boolean, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    until CONSTANT bigint := coalesce(moment, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) * 1000 + 999;
    key CONSTANT bigint := pg_current_xact_id()::text::bigint + {schema}.feed_offset();
    size CONSTANT int := cardinality(counts);
    done bigint[];
BEGIN
    done := {schema}.step_all_{code}(
        until, key, entity_ids, execution_ids, epochs, base_seqs, wakes, covereds, queues, counts, ids, seqs, types, bodies);
    IF cardinality(done) = size THEN
        answers := to_jsonb(array_fill(1, ARRAY[size]));
    ELSE
        answers := {schema}.step_answers_{code}(
            done, entity_ids, execution_ids, epochs, base_seqs, counts, bodies, repeated);
    END IF;
    IF done IS NOT NULL AND {schema}.notices_followed_{code}() THEN
        PERFORM {schema}.notices_log_{code}(NULL, execution_ids[n]) FROM unnest(done) n;
        PERFORM {schema}.notices_send_{code}({schema}.frame_begin_{code}(moment, lease, owner));
    END IF;
    notices := '{}';
    RETURN NEXT;
END $$;
