-- Create executions that are claimed by the worker of their client and committed for the first time at once. Most executions
-- begin so, with an id that is new and a first commit that is a step, or that only sleeps. They have this path of their own,
-- which equals create.sql, a claim and a commit one after the other.
-- part: an object of the columns of instances and states after the commit, worker, and entries as [[type, body], ...]; keeps: the
--   lease is kept; activity_queue: of the activities that the commit claims
-- answer: 1; null if anything about the entity or its queue is unusual, and nothing was changed: then `create` decides
-- tables: instances, states, instance_tags, events; reads activities
-- locks: none; the entities are guarded by the index of open executions, in the order of their ids

CREATE FUNCTION {schema}.start_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    until CONSTANT bigint := {schema}.frame_end_{code}(frame);
    key CONSTANT bigint := {schema}.log_key_{code}();
    done text[];
BEGIN
    WITH part AS MATERIALIZED (
        SELECT p.* FROM jsonb_to_recordset(parts) AS p (
            execution_id text, entity_id text, run_id text, tree_id text, generation bigint, attempt bigint, kind text,
            name text, queue text, created_at bigint, tags text, parent text, parent_id text, parent_key text,
            first_run text, schemas text, activity_queue text
        )
        ORDER BY p.entity_id COLLATE "C"
    )
    , busy AS MATERIALIZED (
        SELECT q.queue FROM (SELECT DISTINCT p.queue FROM part p) q WHERE EXISTS (
            SELECT FROM {schema}.states s WHERE s.queue = q.queue AND s.offered_at <= until AND s.status <> 'diverged')
    ), loaded AS MATERIALIZED (
        SELECT q.queue FROM (SELECT DISTINCT p.activity_queue AS queue FROM part p) q WHERE EXISTS (
            SELECT FROM {schema}.activities a WHERE a.queue = q.queue AND a.offered_at <= until)
    ), begun AS (
        INSERT INTO {schema}.instances (
            execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, tags, parent,
            parent_id, parent_key, first_run, signal_schemas
        )
        SELECT
            p.execution_id, p.entity_id, p.run_id, p.tree_id, p.generation, p.attempt, p.kind, p.name, p.queue, 'running',
            p.created_at, coalesce(p.tags, '{}'), p.parent, p.parent_id, p.parent_key, p.first_run, p.schemas
        FROM part p
        WHERE p.queue NOT IN (SELECT b.queue FROM busy b)
            AND (p.activity_queue IS NULL OR p.activity_queue NOT IN (SELECT l.queue FROM loaded l))
            AND NOT EXISTS (SELECT FROM {schema}.instances i WHERE i.entity_id = p.entity_id)
        ON CONFLICT DO NOTHING
        RETURNING execution_id
    )
    SELECT array_agg(b.execution_id) INTO done FROM begun b;
    notices := '{}';
    IF done IS NULL THEN
        answers := to_jsonb(array_fill(NULL::int, ARRAY[jsonb_array_length(parts)]));
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO {schema}.states (
        execution_id, entity_id, queue, status, last_seq, epoch, commits, feed_key, wake_at, turn, owner, worker, leased_until,
        covered
    )
    SELECT
        p.execution_id, p.entity_id, p.queue, 'running', jsonb_array_length(p.entries), 1, 1, key, p.wake_at,
        nextval('{schema}.turns'),
        CASE WHEN p.keeps THEN frame.owner END, CASE WHEN p.keeps THEN p.worker END,
        CASE WHEN p.keeps THEN frame.now + frame.lease END, p.covered
    FROM jsonb_to_recordset(parts) AS p (
        execution_id text, entity_id text, queue text, entries jsonb, wake_at bigint, worker text, keeps boolean, covered text
    )
    WHERE p.execution_id = ANY (done);
    INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
    SELECT p.execution_id, e.seq, key, e.entry ->> 0, e.entry ->> 1
    FROM jsonb_to_recordset(parts) AS p (execution_id text, entries jsonb)
    CROSS JOIN LATERAL jsonb_array_elements(p.entries) WITH ORDINALITY e (entry, seq)
    WHERE p.execution_id = ANY (done)
    ORDER BY p.execution_id, e.seq;
    INSERT INTO {schema}.instance_tags (name, value, created_at, execution_id)
    SELECT t.key, t.value, p.created_at, p.execution_id
    FROM jsonb_to_recordset(parts) AS p (execution_id text, created_at bigint, tags text)
    CROSS JOIN LATERAL jsonb_each_text(p.tags::jsonb) t
    WHERE p.execution_id = ANY (done) AND p.tags IS NOT NULL;
    PERFORM {schema}.start_note_{code}(frame, parts, done);
    notices := {schema}.notices_send_{code}(frame);
    answers := (
        SELECT jsonb_agg(CASE WHEN p.one ->> 'execution_id' = ANY (done) THEN 1 END ORDER BY p.number)
        FROM jsonb_array_elements(parts) WITH ORDINALITY p (one, number)
    );
    RETURN NEXT;
END $$;

-- Note what has begun: logs, and the moments at which leases end or sleepers wake.
CREATE FUNCTION {schema}.start_note_{code}(frame {schema}.frame_{code}, parts jsonb, done text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_due_{code}(frame, d.queue, d.moment) FROM (
        SELECT p.queue, min(CASE WHEN p.keeps THEN frame.now + frame.lease ELSE p.wake_at END) AS moment
        FROM jsonb_to_recordset(parts) AS p (execution_id text, queue text, wake_at bigint, keeps boolean)
        WHERE p.execution_id = ANY (done) AND (p.keeps OR p.wake_at IS NOT NULL)
        GROUP BY p.queue
    ) d;
    PERFORM {schema}.notices_log_{code}(frame, id) FROM unnest(done) id;
END $$;
