-- The statements that read, each of one moment. They call none of the functions of the store: an inspector that is opened by
-- itself installs none. A part that several statements share has its name in braces. A moment that is NULL is the server's.

-- {now}: The moment of the statement.
coalesce($1::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)

-- {instance}: The fields of an instance, in the order in which `rows.instance_of` reads them.
i.execution_id, i.entity_id, i.run_id, i.tree_id, i.generation, i.attempt, i.kind, i.name, i.queue, i.status, i.created_at,
i.closed_at, i.deactivated, s.last_seq, s.wake_at, i.tags, s.parked, s.dead_letter, i.parent, i.signal_schemas, i.failure,
i.archived

-- {letters}: The dead letters among the activities of an instance; NULL if there are none.
(SELECT array_agg(a.dead_letter ORDER BY a.ref) FROM {schema}.activities AS a
 WHERE a.execution_id = i.execution_id AND a.dead_letter IS NOT NULL)

-- {instances}: The tables of an instance.
{schema}.instances AS i JOIN {schema}.states AS s USING (execution_id)

-- newest: Return the newest execution of an entity.
SELECT {instance}, {letters} FROM {instances} WHERE i.entity_id = $1 ORDER BY i.position DESC LIMIT 1;

-- newest_of_run: Return the newest execution of a run.
SELECT {instance}, {letters} FROM {instances}
WHERE i.entity_id = $1 AND i.run_id = $2 ORDER BY i.position DESC LIMIT 1;

-- execution: Return one execution, if it belongs to the entity, and to the run unless that is NULL.
SELECT {instance}, {letters} FROM {instances}
WHERE i.execution_id = $3 AND i.entity_id = $1 AND ($2::text IS NULL OR i.run_id = $2);

-- {state}: The state of an instance, found by its id after the instance: the order of instances stays.
CROSS JOIN LATERAL (SELECT x.* FROM {schema}.states AS x WHERE x.execution_id = i.execution_id OFFSET 0) AS s

-- list: Return the next instances of a walk that fit, newest first, and the last one of those that it may pass. The walk, the
-- conditions and the numbers are put in by `lists`.
SELECT {instance}, {letters}, {fits} AS fits, i.place
FROM (
  SELECT w.*, row_number() OVER (ORDER BY w.at DESC, w.id DESC) AS place
  FROM ({walk}) AS w ORDER BY w.at DESC, w.id DESC LIMIT {most}
) AS i
{state}
WHERE ({fits}) OR i.place = {most}
ORDER BY i.at DESC, i.id DESC LIMIT {limit};

-- reach: Return how far back the next entries of several walks reach, each as its place; NULL for one that ends before.
SELECT {looks};

-- ended: Return complete executions that ended before a moment, in the order in which they ended.
SELECT {instance}
FROM (SELECT w.* FROM ({walk}) AS w ORDER BY w.closed_at, w.execution_id LIMIT {limit}) AS i
{state}
ORDER BY i.closed_at, i.execution_id;

-- dead_letters: Return executions after an id that are dead letters, or have activities that are.
SELECT {instance}, {letters} FROM {instances} WHERE i.execution_id IN (
  SELECT x.execution_id FROM {schema}.states AS x WHERE x.dead_letter IS NOT NULL AND x.execution_id > $1
  UNION SELECT a.execution_id FROM {schema}.activities AS a WHERE a.dead_letter IS NOT NULL AND a.execution_id > $1
  ORDER BY execution_id LIMIT $2)
ORDER BY i.execution_id;

-- history: Return entries of a log after a seq, with the forgotten ones or without; all if the limit is NULL.
SELECT e.seq, e.body FROM {schema}.events AS e
WHERE e.execution_id = $1 AND ($2 OR e.forgotten IS NULL) AND e.seq > $3 ORDER BY e.seq LIMIT $4;

-- logs: Return the active entries of logs after a seq, of executions that belong to their entity; each with the number of its
-- part, from 1 on. The rows of a part are in order; to sort all of them would cost a second pass over a long log.
SELECT p.number, e.seq, e.body
FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS p (entity_id, execution_id, after, number)
JOIN {schema}.states AS s ON s.execution_id = p.execution_id AND s.entity_id = p.entity_id
CROSS JOIN LATERAL (
    SELECT l.seq, l.body FROM {schema}.events AS l
    WHERE l.execution_id = p.execution_id AND l.seq > p.after AND l.forgotten IS NULL ORDER BY l.seq
) AS e;

-- last_entries: Return the last entries of a log, newest first, with the forgotten ones or without.
SELECT e.seq, e.body FROM {schema}.events AS e
WHERE e.execution_id = $1 AND ($2 OR e.forgotten IS NULL) ORDER BY e.seq DESC LIMIT $3;

-- {scheduled}: The entries that scheduled the activities which the lease covers, and perhaps others; NULL if it covers none.
(SELECT array_agg(e.body) FROM {schema}.events AS e
 WHERE s.covered IS NOT NULL AND e.execution_id = s.execution_id
   AND e.seq = ANY (ARRAY(SELECT (one ->> 0)::bigint FROM jsonb_array_elements(s.covered::jsonb) AS one)))

-- {activities}: The activities of an execution that have a row.
(SELECT array_agg(row(a.ref, a.request, a.visible_at, a.attempt, a.deliveries, a.dead_letter, a.details, a.heartbeat_at,
                      a.worker, a.leased_until) ORDER BY a.ref)
 FROM {schema}.activities AS a WHERE a.execution_id = s.execution_id)

-- {inbox}: The unread entries of the inbox of an execution.
(SELECT array_agg(n.body ORDER BY CASE WHEN n.wake > 0 THEN n.wake ELSE -n.wake >> 32 END, -n.wake)
 FROM {schema}.inbox AS n WHERE n.execution_id = s.execution_id)

-- open_work: Return the activities, the inbox and the lease of an execution.
SELECT s.worker, s.leased_until, s.deliveries, {activities}, s.covered, {scheduled}, {inbox} FROM {schema}.states AS s
WHERE s.execution_id = $1 AND s.entity_id = $2;

-- promise: Return a promise by its id, and its execution.
SELECT p.promise_id, p.name, p.schema, p.settled, {instance}, {letters}
FROM {schema}.promises AS p JOIN {schema}.instances AS i USING (execution_id) JOIN {schema}.states AS s USING (execution_id)
WHERE p.promise_id = $1;

-- promise_named: Return a promise of an execution by its name: the oldest open one, or the oldest if none is open.
SELECT p.promise_id, p.name, p.schema, p.settled, {instance}, {letters}
FROM {schema}.promises AS p JOIN {schema}.instances AS i USING (execution_id) JOIN {schema}.states AS s USING (execution_id)
WHERE p.execution_id = coalesce(
        $2, (SELECT newest.execution_id FROM {schema}.instances AS newest
             WHERE newest.entity_id = $1 ORDER BY newest.position DESC LIMIT 1))
  AND p.name = $3
ORDER BY p.settled, p.position LIMIT 1;

-- count_statuses: Count the executions of each status.
SELECT i.status, count(*) FROM {schema}.instances AS i GROUP BY i.status;

-- count_work: Count the work of each queue: ready instances; activities that wait and claimed ones; dead letters of both kinds.
WITH instances AS (
    SELECT s.queue,
           count(*) FILTER (WHERE s.dead_letter IS NULL AND s.paused IS NULL AND s.leased_until IS NULL
                            AND (s.ready_at IS NOT NULL OR s.wake_at <= {now})) AS ready,
           count(s.dead_letter) AS dead
    FROM {schema}.states AS s GROUP BY s.queue
), activities AS (
    SELECT a.queue, count(*) FILTER (WHERE a.leased_until IS NULL AND a.dead_letter IS NULL) AS waiting,
           count(*) FILTER (WHERE a.leased_until IS NOT NULL AND a.dead_letter IS NULL) AS claimed,
           count(a.dead_letter) AS dead
    FROM {schema}.activities AS a GROUP BY a.queue
)
SELECT queue, coalesce(i.ready, 0), coalesce(a.waiting, 0), coalesce(a.claimed, 0), coalesce(i.dead, 0), coalesce(a.dead, 0)
FROM instances AS i FULL JOIN activities AS a USING (queue);

-- covered: Return the activities that leases cover, with the refs of those of them that have a row.
SELECT s.covered, (SELECT array_agg(a.ref) FROM {schema}.activities AS a WHERE a.execution_id = s.execution_id)
FROM {schema}.states AS s WHERE s.covered IS NOT NULL;

-- messages: Return the number of the newest message on a topic, and the messages after a number.
SELECT greatest((SELECT t.number FROM {schema}.topics AS t WHERE t.topic = $1),
                (SELECT max(m.number) FROM {schema}.messages AS m WHERE m.topic = $1), 0),
       (SELECT array_agg(m.body ORDER BY m.number) FROM {schema}.messages AS m WHERE m.topic = $1 AND m.number > $2);

-- {bound}: The key that is not in the feed yet: that of the oldest transaction that is open.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + {schema}.feed_offset() AS bound

-- feed_bound: Return the key after all events that can be read.
{bound};

-- {fitting}: The events among those that were passed that have one of some types (all, if that is NULL), as rows; and how many
-- were passed, and the last of them.
SELECT (SELECT bound FROM oldest), (SELECT count(*) FROM passed),
       (SELECT feed_key FROM passed ORDER BY feed_key DESC, position DESC LIMIT 1),
       (SELECT position FROM passed ORDER BY feed_key DESC, position DESC LIMIT 1),
       array(SELECT row(p.feed_key, p.position, i.entity_id, p.execution_id, i.kind, p.seq, p.type, p.body)
             FROM passed AS p JOIN {schema}.instances AS i USING (execution_id)
             WHERE $3::text[] IS NULL OR p.type = ANY ($3) ORDER BY p.feed_key, p.position LIMIT $4)

-- feed: Return events after a position, in the order of their commits; at most $5 are passed.
WITH oldest AS ({bound}), passed AS MATERIALIZED (
    SELECT e.feed_key, e.position, e.execution_id, e.seq, e.type, e.body FROM {schema}.events AS e
    WHERE (e.feed_key, e.position) > ($1::bigint, $2::bigint) AND e.feed_key < (SELECT bound FROM oldest)
    ORDER BY e.feed_key, e.position LIMIT $5
)
{fitting};

-- feed_of_entity: The same of one entity, found by its executions.
WITH oldest AS ({bound}), passed AS MATERIALIZED (
    SELECT e.feed_key, e.position, e.execution_id, e.seq, e.type, e.body
    FROM {schema}.instances AS of_entity JOIN {schema}.events AS e USING (execution_id)
    WHERE of_entity.entity_id = $6 AND (e.feed_key, e.position) > ($1::bigint, $2::bigint)
      AND e.feed_key < (SELECT bound FROM oldest)
    ORDER BY e.feed_key, e.position LIMIT $5
)
{fitting};

-- value: Return the value of a key, unless it has expired.
SELECT v.value FROM {schema}.stored_values AS v WHERE v.key = $2 AND (v.expires_at IS NULL OR v.expires_at > {now});

-- live_workers: Return the workers that have not expired, in the order in which they started.
SELECT w.body, w.started_at, w.seen_at FROM {schema}.workers AS w WHERE w.expires_at > {now}
ORDER BY w.started_at, w.worker_id;

-- query_result: Return whether a query is completed, and its result, unless it has expired.
SELECT q.completed, q.result, q.failure FROM {schema}.queries AS q WHERE q.query_id = $2 AND q.until > {now};

-- waiting_queries: Return a row if a query could be claimed in some queues.
SELECT 1 FROM {schema}.queries AS q
WHERE NOT q.completed AND q.leased_until <= {now} AND q.until > {now} AND q.queue = ANY ($2) LIMIT 1;

-- known: Return the executions of an entity, oldest first, those with some ids, and the holders of some promises: each with
-- its kind, and the id by which it was asked for.
SELECT 'known', NULL, i.position, {instance} FROM {instances} WHERE i.entity_id = $1
UNION ALL
SELECT 'found', i.execution_id, 0, {instance} FROM {instances} WHERE i.execution_id = ANY ($2)
UNION ALL
SELECT 'holder', p.promise_id, 0, {instance}
FROM {schema}.promises AS p JOIN {schema}.instances AS i USING (execution_id) JOIN {schema}.states AS s USING (execution_id)
WHERE p.promise_id = ANY ($3)
ORDER BY 1, 3;

-- copies: Return everything that is kept of an entity's executions, or of one run's, oldest first.
SELECT {instance}, s.status, s.paused,
       (SELECT array_agg(row(e.seq, e.body, e.forgotten) ORDER BY e.seq) FROM {schema}.events AS e
        WHERE e.execution_id = s.execution_id),
       {inbox}, {activities}, s.covered, {scheduled},
       (SELECT array_agg(row(p.promise_id, p.name, p.schema, p.settled) ORDER BY p.position) FROM {schema}.promises AS p
        WHERE p.execution_id = s.execution_id),
       (SELECT a.body FROM {schema}.answers AS a WHERE a.execution_id = s.execution_id),
       {schema}.transfer_version_{code}(s)
FROM {instances} WHERE i.entity_id = $1 AND ($2::text IS NULL OR i.run_id = $2) ORDER BY i.position;
