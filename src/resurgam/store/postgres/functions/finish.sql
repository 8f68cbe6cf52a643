-- Commit the ends of running instances that do nothing else: no activity runs, nothing is sent, and the inbox has not changed.
-- Most executions end so; this equals shared/commits.sql and costs a fraction of it.
-- part: an element of each array: entity id, execution id, epoch, base seq, wake, status, whether it is deactivated, failure
--   (null for none), the number of events; execution ids, seqs, types and bodies of all events in turn
--   repeated: the call may have been done before, and its answer lost
-- answer: 1; null if anything about the instance is unusual, and nothing was changed: then `commit` decides
-- tables: states, instances, events
-- locks: the states in the order of entity ids

-- Return the numbers of the ends that were committed. They are looked up one after another, and so locked in the order of
-- entity ids.
CREATE FUNCTION {schema}.finish_all_{code}(
    now_ bigint, key bigint, entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[], wakes bigint[],
    statuses text[], completes boolean[], failures text[], counts bigint[], ids text[], seqs bigint[], types text[],
    bodies text[]
)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    done bigint[];
    keys bigint[];
BEGIN
    WITH changed AS (
        UPDATE {schema}.states s SET
            status = p.status, last_seq = p.base_seq + p.count, feed_key = greatest(s.feed_key, key), covered = NULL,
            commits = s.commits + 1, deliveries = 0, last_failure = '', wake_at = NULL, ready_at = NULL, owner = NULL,
            worker = NULL, claim = NULL, leased_until = NULL
        FROM (
            SELECT * FROM unnest(entity_ids, execution_ids, epochs, base_seqs, wakes, statuses, completes, failures, counts)
                WITH ORDINALITY
                u (entity_id, execution_id, epoch, base_seq, wake, status, complete, failure, count, number)
            ORDER BY u.entity_id COLLATE "C", u.number
        ) p
        WHERE s.execution_id = p.execution_id AND s.entity_id = p.entity_id AND s.epoch = p.epoch
            AND s.last_seq = p.base_seq AND s.wake = p.wake AND s.leased_until IS NOT NULL AND s.status = 'running'
            AND s.paused IS NULL
        RETURNING s.execution_id, s.feed_key, p.status, p.complete, p.failure, p.number
    ), closed AS (
        UPDATE {schema}.instances i SET
            status = c.status, closed_at = now_, deactivated = c.complete, failure = coalesce(c.failure, i.failure)
        FROM changed c WHERE i.execution_id = c.execution_id
    )
    SELECT array_agg(c.number), array_agg(c.feed_key) INTO done, keys FROM changed c;
    PERFORM {schema}.log_extend_{code}(key, done, keys, counts, ids, seqs, types, bodies);
    RETURN done;
END $$;

-- Whether an end was committed before: then it has left its events, and nothing is behind them.
CREATE FUNCTION {schema}.finish_is_done_{code}(
    entity text, id text, held_epoch bigint, base bigint, closing text, bodies text[]
)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM {schema}.states s
        WHERE s.execution_id = id AND s.entity_id = entity AND s.epoch = held_epoch AND s.status = closing
            AND s.last_seq = base + cardinality(bodies)
    ) AND bodies = ARRAY(
        SELECT e.body FROM {schema}.events e WHERE e.execution_id = id AND e.seq > base ORDER BY e.seq
    );
END $$;

CREATE FUNCTION {schema}.finish_{code}(
    moment bigint, lease bigint, owner text, entity_ids text[], execution_ids text[], epochs bigint[], base_seqs bigint[],
    wakes bigint[], statuses text[], completes boolean[], failures text[], counts bigint[], ids text[], seqs bigint[],
    types text[], bodies text[],
    repeated boolean, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ CONSTANT bigint := coalesce(moment, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    key CONSTANT bigint := pg_current_xact_id()::text::bigint + {schema}.feed_offset();
    size CONSTANT int := cardinality(counts);
    done CONSTANT bigint[] := {schema}.finish_all_{code}(
        now_, key, entity_ids, execution_ids, epochs, base_seqs, wakes, statuses, completes, failures, counts, ids, seqs,
        types, bodies);
    first bigint := 0;
BEGIN
    notices := '{}';
    IF cardinality(done) = size THEN
        answers := to_jsonb(array_fill(1, ARRAY[size]));
    ELSE
        answers := '[]';
        FOR n IN 1 .. size LOOP
            answers := answers || CASE
                WHEN n = ANY (done) OR (repeated AND {schema}.finish_is_done_{code}(
                    entity_ids[n], execution_ids[n], epochs[n], base_seqs[n], statuses[n],
                    bodies[first + 1 : first + counts[n]]
                )) THEN jsonb '1' ELSE jsonb 'null'
            END;
            first := first + counts[n];
        END LOOP;
    END IF;
    IF done IS NOT NULL THEN
        notices := {schema}.finish_note_{code}(owner, ARRAY(SELECT execution_ids[n] FROM unnest(done) n));
    END IF;
    RETURN NEXT;
END $$;

-- Tell other processes of executions that are closed, and of their logs if one follows them; return the notices for the caller.
CREATE FUNCTION {schema}.finish_note_{code}(owner text, ids text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    closed CONSTANT text[] := ARRAY(SELECT t FROM unnest(ids) id CROSS JOIN LATERAL unnest(ARRAY['closed', id]) t);
    told text[] := closed;
    payload text;
BEGIN
    IF {schema}.notices_followed_{code}() THEN
        told := told || ARRAY(SELECT t FROM unnest(ids) id CROSS JOIN LATERAL unnest(ARRAY['log', id]) t);
    END IF;
    payload := array_to_json(owner || told)::text;
    IF octet_length(payload) > 7900 THEN payload := json_build_array(owner, '*', '')::text; END IF;
    PERFORM pg_notify({channel}, payload);
    RETURN closed;
END $$;
