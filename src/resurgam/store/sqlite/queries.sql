-- Every statement of the SQLite store but those of lists, which `listing.py` builds. Each has a name and a sentence.
-- Parameters are named, or by position (?) in the statements of every step. A part that several statements share has its
-- name in braces.

-- instance_by_execution: Return one instance with all its columns.
SELECT * FROM instances WHERE execution_id = :execution_id;

-- progress: Return how far an instance has come.
SELECT status, wake, last_seq, epoch FROM instances WHERE execution_id = :execution_id;

-- progress_of: Return how far several instances have come.
SELECT execution_id, status, wake, last_seq FROM instances
WHERE execution_id IN (SELECT value FROM json_each(:execution_ids));

-- executions_of: List the executions of an entity, oldest first.
SELECT * FROM instances WHERE entity_id = :entity_id ORDER BY position;

-- executions_of_run: List the executions of a run, oldest first.
SELECT * FROM instances WHERE entity_id = :entity_id AND run_id = :run_id ORDER BY position;

-- entity_known: Return a row if an entity has an execution.
SELECT 1 FROM instances WHERE entity_id = ? LIMIT 1;

-- newest_execution: Return the newest execution of an entity.
SELECT * FROM instances WHERE entity_id = :entity_id ORDER BY position DESC LIMIT 1;

-- {instance}: The fields of an instance as one JSON array, which `rows.unpack` reads: sqlite3 describes each column of a
-- result for each statement that is run, which costs several times as much.
json_array(
    instances.execution_id, instances.entity_id, instances.run_id, instances.tree_id, instances.generation,
    instances.attempt, instances.kind, instances.name, instances.queue, instances.status, instances.created_at,
    instances.closed_at, instances.deactivated, instances.last_seq, instances.wake_at, instances.tags, instances.parked,
    instances.dead_letter, instances.paused, instances.parent, instances.signal_schemas, instances.failure,
    instances.archived)

-- {dead_letters}: The dead letters among the activities of an instance, as a JSON array.
(SELECT json_group_array(dead_letter) FROM (
    SELECT dead_letter FROM activities
    WHERE execution_id = instances.execution_id AND dead_letter IS NOT NULL ORDER BY ref))

-- shown_newest: Return the newest execution of an entity, with the dead letters among its activities.
SELECT {instance}, {dead_letters} FROM instances WHERE entity_id = :entity_id ORDER BY position DESC LIMIT 1;

-- shown_newest_of_run: The same of a run.
SELECT {instance}, {dead_letters} FROM instances
WHERE entity_id = :entity_id AND run_id = :run_id ORDER BY position DESC LIMIT 1;

-- shown_execution: The same of one execution, if it belongs to the entity, and to the run unless :run_id is NULL.
SELECT {instance}, {dead_letters} FROM instances
WHERE execution_id = :execution_id AND entity_id = :entity_id AND (:run_id IS NULL OR run_id = :run_id);

-- dead_letters: Return executions after an id that are dead letters, or have activities that are.
SELECT * FROM instances WHERE execution_id IN (
    SELECT execution_id FROM instances WHERE dead_letter IS NOT NULL AND execution_id > :after
    UNION SELECT execution_id FROM activities WHERE dead_letter IS NOT NULL AND execution_id > :after
    ORDER BY execution_id LIMIT :limit)
ORDER BY execution_id;

-- same_execution: Return the execution of an entity with this run and attempt.
SELECT * FROM instances WHERE entity_id = :entity_id AND run_id = :run_id AND attempt = :attempt ORDER BY position LIMIT 1;

-- create_instance: Insert an execution; ready to be claimed unless :ready is 0.
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status,
                       created_at, last_seq, wake_at, tags, ready, paused, parent, parent_id, first_run)
VALUES (:execution_id, :entity_id, :run_id, :tree_id, :generation, :attempt, :kind, :name, :queue, :status,
        :created_at, :last_seq, :wake_at, :tags, :ready, :paused, :parent, :parent_id, :first_run);

-- may_begin_at_once: Return a row if an entity (?1) has no execution and no older work waits in a queue (?2).
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM instances WHERE entity_id = ?1)
  AND NOT EXISTS (
      SELECT 1 FROM instances
      WHERE queue = ?2 AND ready AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
        AND status <> 'diverged')
  AND NOT EXISTS (
      SELECT 1 FROM instances
      WHERE queue = ?2 AND wake_at <= ?3 AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
        AND status <> 'diverged')
  AND NOT EXISTS (
      SELECT 1 FROM instances
      WHERE leased_until <= ?3 AND queue = ?2 AND dead_letter IS NULL AND paused IS NULL AND status <> 'diverged');

-- begin_committed: Insert an execution as it is after its first claim and its first commit.
-- Empty text stands for NULL: Python's binding looks for an adapter of each None, which costs as much as ten columns.
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, created_at, last_seq,
                       wake_at, tags, parent, parent_id, first_run, signal_schemas, covered, lease_owner, leased_until,
                       status, ready, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, ''), nullif(?, ''),
        nullif(?, ''), nullif(?, ''), 'running', 0, 1);

-- tag_instance: Insert a tag of an instance.
INSERT INTO instance_tags (name, value, created_at, execution_id) VALUES (:name, :value, :created_at, :execution_id);

-- add_tag: Insert a tag of an instance that is there.
INSERT INTO instance_tags (name, value, created_at, execution_id)
SELECT :name, :value, created_at, execution_id FROM instances WHERE execution_id = :execution_id;

-- set_tags: Set the tags that an instance shows.
UPDATE instances SET tags = :tags WHERE execution_id = :execution_id;

-- append_event: Append an entry to a log.
INSERT INTO events (execution_id, seq, body) VALUES (?, ?, ?);

-- forget_event: Keep an entry under a location, where replay does not read it; a forgotten entry moves.
UPDATE events SET forgotten = :location WHERE execution_id = :execution_id AND seq = :seq;

-- drop_events: Delete the entries that are forgotten within a span of locations.
DELETE FROM events WHERE execution_id = :execution_id AND forgotten >= :start AND forgotten < :end;

-- events_after: Return the active entries of a log after a seq.
SELECT seq, body FROM events
WHERE execution_id = :execution_id AND seq > :after AND forgotten IS NULL ORDER BY seq;

-- shown_events: Return entries of a log after a seq, with the forgotten ones or without; all if :limit is negative.
SELECT seq, forgotten, body FROM events
WHERE execution_id = :execution_id AND seq > :after AND (:forgotten OR forgotten IS NULL) ORDER BY seq LIMIT :limit;

-- last_events: Return the last entries of a log, newest first, with the forgotten ones or without.
SELECT seq, forgotten, body FROM events
WHERE execution_id = :execution_id AND (:forgotten OR forgotten IS NULL) ORDER BY seq DESC LIMIT :last;

-- raise_wake: Raise the wake counter; an instance without a lease becomes ready, unless it is scheduled.
-- An instance that is ready already keeps its timestamp.
UPDATE instances SET wake = wake + 1,
    ready = CASE WHEN ready THEN ready WHEN leased_until IS NULL AND status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id RETURNING wake;

-- put_into_inbox: Append an entry to an inbox.
INSERT INTO inbox (execution_id, wake, body) VALUES (:execution_id, :wake, :body);

-- put_quietly_into_inbox: Append an entry to an inbox that comes with the next one that raises the wake counter.
INSERT INTO inbox (execution_id, wake, body)
SELECT execution_id, wake + 1, :body FROM instances WHERE execution_id = :execution_id;

-- inbox_since: Return the entries that came into an inbox after the wake counter had this value.
SELECT id, body FROM inbox WHERE execution_id = :execution_id AND wake > :wake ORDER BY id;

-- inboxes: Return the entries of several inboxes.
SELECT id, execution_id, body FROM inbox
WHERE execution_id IN (SELECT value FROM json_each(:execution_ids)) ORDER BY id;

-- consume_inbox: Delete a consumed entry of an inbox.
DELETE FROM inbox WHERE id = ? AND execution_id = ?;

-- pause_instance: Pause an instance, alone or with its tree; no row if it is paused so already.
UPDATE instances SET paused = :paused
WHERE execution_id = :execution_id AND closed_at IS NULL AND (paused IS NULL OR (paused = 'alone' AND :paused = 'tree'));

-- resume_instance: Resume an instance; no row if it was not paused.
UPDATE instances SET paused = NULL, ready = CASE WHEN ready THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND paused IS NOT NULL;

-- begin_instance: Begin a scheduled instance; no row if it was not scheduled.
UPDATE instances SET status = 'running', wake_at = NULL WHERE execution_id = :execution_id AND status = 'scheduled';

-- move_inbox: Copy the unread entries of some types to another execution, behind its own.
INSERT INTO inbox (execution_id, wake, body)
SELECT :successor, :wake, body FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types))
ORDER BY id;

-- delete_moved: Delete the entries that were moved.
DELETE FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types));

-- types_in_inbox: Return which of some types are in an inbox.
SELECT DISTINCT json_extract(body, '$.type') AS type FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types));

-- claimable_instances: List what a worker may claim, in the order in which it became claimable: ready, due, lease expired,
-- or parked and not tried by this worker. A parked instance counts from its creation.
SELECT {instance} AS instance, execution_id, position, wake, epoch, deliveries, last_failure, claimable.ready_at,
       covered IS NOT NULL AS covers
FROM instances JOIN (
    SELECT position, min(ready_at) AS ready_at FROM (
        SELECT * FROM (
            SELECT position, ready AS ready_at FROM instances AS i
            WHERE queue = :queue AND ready AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
              AND status <> 'diverged'
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY ready, position LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT position, wake_at * 1000 AS ready_at FROM instances AS i
            WHERE queue = :queue AND wake_at <= :now AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
              AND status <> 'diverged'
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY wake_at, position LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT position, leased_until * 1000 AS ready_at FROM instances AS i
            WHERE leased_until <= :now AND dead_letter IS NULL AND paused IS NULL AND queue = :queue
              AND (status <> 'scheduled' OR wake_at <= :now)
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY leased_until, position LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT position, created_at * 1000 AS ready_at FROM instances AS i
            WHERE queue = :queue AND status = 'diverged' AND dead_letter IS NULL AND paused IS NULL AND leased_until IS NULL
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY created_at, position LIMIT :limit)
    ) GROUP BY position
) AS claimable USING (position) ORDER BY claimable.ready_at, position LIMIT :limit;

-- {claimable_eagerly}: Whether a worker may claim an instance that was made ready, and no older work waits in its queue.
instances.leased_until IS NULL AND instances.dead_letter IS NULL AND instances.paused IS NULL
  AND instances.status = 'running' AND instances.deliveries < :redeliveries
  AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = instances.execution_id AND tried.worker = :worker)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS older
      WHERE older.queue = instances.queue AND older.ready AND older.leased_until IS NULL AND older.dead_letter IS NULL
        AND older.paused IS NULL AND older.status <> 'diverged' AND older.position <> instances.position)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS due
      WHERE due.queue = instances.queue AND due.wake_at <= :now AND due.leased_until IS NULL AND due.dead_letter IS NULL
        AND due.paused IS NULL AND due.status <> 'diverged' AND due.position <> instances.position)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS lost
      WHERE lost.leased_until <= :now AND lost.queue = instances.queue AND lost.dead_letter IS NULL
        AND lost.paused IS NULL AND lost.status <> 'diverged')

-- claimable_eagerly: Return an instance if a worker may claim it and no older work waits in its queue.
SELECT {instance} AS instance, execution_id, position, wake, epoch, deliveries, last_failure FROM instances
WHERE execution_id = :execution_id AND {claimable_eagerly};

-- newest_claimable: Return the newest execution of an entity, if a worker may claim it and no older work waits in its queue.
SELECT {instance}, execution_id, position, wake, epoch, queue, signal_schemas,
       EXISTS (SELECT 1 FROM inbox WHERE inbox.execution_id = instances.execution_id) AS unread
FROM instances
WHERE position = (SELECT max(position) FROM instances WHERE entity_id = :entity_id) AND {claimable_eagerly};

-- wake_and_lease: Raise the wake counter of an instance and lease it.
-- A statement of its own: an update that returns its row would build a table for it.
UPDATE instances
SET wake = wake + 1, epoch = epoch + 1, lease_owner = ?, leased_until = ?, deliveries = deliveries + 1, ready = 0
WHERE position = ?;

-- lease_instance: Lease an instance, with a new epoch.
UPDATE instances
SET epoch = epoch + 1, lease_owner = :owner, leased_until = :until, deliveries = deliveries + 1, ready = 0
WHERE position = :position;

-- mark_instance_dead: Make an instance a dead letter, which is not handed out.
UPDATE instances SET dead_letter = :reason, leased_until = NULL, lease_owner = NULL, ready = 0,
    covered = NULL
WHERE execution_id = :execution_id;

-- {no_older_activity}: Whether no activity of a queue waits to be claimed; true if the queue is 0.
-- Most often none waits at all, which the index says by itself.
(?1 = 0 OR NOT EXISTS (SELECT 1 FROM activities WHERE queue = ?1 AND available_at <= ?2) OR NOT EXISTS (
    SELECT 1 FROM activities AS a JOIN instances AS i USING (execution_id)
    WHERE a.queue = ?1 AND a.available_at <= ?2 AND i.paused IS NULL))

-- commit_step: Make the fenced update of a commit that only extends the log. No row: `commit` decides.
UPDATE instances SET last_seq = ?3, covered = ?4, wake_at = ?9, deliveries = 0
WHERE execution_id = ?5 AND epoch = ?6 AND leased_until IS NOT NULL AND last_seq = ?7 AND wake = ?8
  AND status = 'running' AND parked IS NULL AND paused IS NULL AND last_failure = '' AND {no_older_activity};

-- commit_awake: The same for a commit that sets no deadline, of an instance that has none. It touches no index.
UPDATE instances SET last_seq = ?3, covered = ?4, deliveries = 0
WHERE execution_id = ?5 AND epoch = ?6 AND leased_until IS NOT NULL AND last_seq = ?7 AND wake = ?8 AND wake_at IS NULL
  AND status = 'running' AND parked IS NULL AND paused IS NULL AND last_failure = '' AND {no_older_activity};

-- commit_and_rest: The same with the end of the lease. It touches no index of lists, which have the status.
UPDATE instances
SET last_seq = ?, wake_at = ?, deliveries = 0, covered = NULL, leased_until = NULL, lease_owner = NULL, ready = 0
WHERE execution_id = ? AND epoch = ? AND leased_until IS NOT NULL AND last_seq = ? AND wake = ?
  AND status = 'running' AND parked IS NULL AND paused IS NULL AND last_failure = '';

-- commit_and_keep: Make the fenced update of a commit that keeps its lease. No row: the commit is refused.
-- An instance that was begun meanwhile stays begun.
UPDATE instances
SET status = CASE WHEN :status = 'scheduled' AND status = 'running' THEN status ELSE :status END,
    closed_at = coalesce(closed_at, :closed_at), paused = CASE WHEN :closed_at IS NULL THEN paused END,
    deactivated = :deactivated, last_seq = :last_seq, wake_at = :wake_at, parked = :parked, deliveries = 0,
    last_failure = '', covered = :covered
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL AND last_seq = :base_seq
  AND (wake = :wake OR NOT :strict)
RETURNING wake, paused;

-- commit_and_release: The same with the end of the lease; ready again exactly if the wake counter has moved.
UPDATE instances
SET status = CASE WHEN :status = 'scheduled' AND status = 'running' THEN status ELSE :status END,
    closed_at = coalesce(closed_at, :closed_at), paused = CASE WHEN :closed_at IS NULL THEN paused END,
    deactivated = :deactivated, last_seq = :last_seq, wake_at = :wake_at, parked = :parked, deliveries = 0,
    last_failure = '', covered = NULL,
    leased_until = NULL, lease_owner = NULL,
    ready = CASE WHEN wake <> :wake AND NOT (:status = 'scheduled' AND status <> 'running') THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL AND last_seq = :base_seq
  AND (wake = :wake OR NOT :strict)
RETURNING wake, paused;

-- set_signal_schemas: Set the schemas of the signals that the code of an instance accepts.
UPDATE instances SET signal_schemas = :schemas WHERE execution_id = :execution_id;

-- set_failure: Set the type name of the failure that closed an instance.
UPDATE instances SET failure = :failure WHERE execution_id = :execution_id;

-- end_kept_lease: End a lease that a commit has kept for activities which were not claimed.
UPDATE instances SET leased_until = NULL, lease_owner = NULL, covered = NULL,
    ready = CASE WHEN wake <> :wake AND status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id;

-- release_instance: End a lease without a commit; ready again.
UPDATE instances
SET leased_until = NULL, lease_owner = NULL, ready = CASE WHEN status <> 'scheduled' THEN :ready_at ELSE 0 END,
    deliveries = max(0, deliveries - :undelivered), last_failure = :last_failure
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL;

-- terminate_instance: Close an instance, whether or not it is leased.
UPDATE instances
SET status = :status, closed_at = :now, last_seq = :seq, wake_at = NULL, parked = NULL, dead_letter = NULL, paused = NULL,
    ready = :ready_at, deliveries = 0, epoch = epoch + 1, leased_until = NULL, lease_owner = NULL, covered = NULL
WHERE execution_id = :execution_id;

-- forget_tries: Offer a parked instance again to the workers that have tried it.
DELETE FROM tried WHERE execution_id = :execution_id;

-- revive_instance: Hand out again an instance that is a dead letter or parked, unless its log is in an archive.
UPDATE instances SET dead_letter = NULL, deliveries = 0, ready = CASE WHEN status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND archived IS NULL AND (dead_letter IS NOT NULL OR parked IS NOT NULL);

-- revive_activities: Hand out again the activities of an instance that are dead letters.
UPDATE activities SET dead_letter = NULL, deliveries = 0, available_at = visible_at
WHERE execution_id = :execution_id AND dead_letter IS NOT NULL;

-- extend_instance: Renew the lease of an instance.
UPDATE instances SET leased_until = :until
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL RETURNING wake;

-- forget_old_tries: Forget workers that have tried a parked instance, as far as there are too many.
DELETE FROM tried WHERE execution_id = :execution_id AND worker IN (
    SELECT worker FROM tried WHERE execution_id = :execution_id AND worker <> :worker
    LIMIT max(0, (SELECT count(*) FROM tried WHERE execution_id = :execution_id) - :kept));

-- mark_tried: Note a worker whose code does not fit a parked instance.
INSERT OR IGNORE INTO tried (execution_id, worker) VALUES (:execution_id, :worker);

-- schedule_activity: Put the first attempt of an activity on its queue, claimable now or leased by its commit (epoch 1).
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, deliveries, lease_owner, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1);

-- covered: Return the activities that the lease on an instance covers.
SELECT covered FROM instances WHERE execution_id = :execution_id AND covered IS NOT NULL;

-- set_covered: Set them.
UPDATE instances SET covered = :covered WHERE execution_id = :execution_id;

-- clear_covered: Note that the lease covers none any more.
UPDATE instances SET covered = NULL WHERE execution_id = :execution_id AND covered IS NOT NULL;

-- shown_covered: List them, with the moments at which they were scheduled.
SELECT h.value AS request,
       coalesce((SELECT json_extract(e.body, '$.at') FROM events AS e
                 WHERE e.execution_id = i.execution_id AND e.seq = json_extract(h.value, '$.ref')), 0) AS visible_at
FROM instances AS i, json_each(i.covered) AS h WHERE i.execution_id = :execution_id;

-- free_covered: Put them on their queues, each with a row; claimable from now on.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, deliveries)
SELECT execution_id, ref, queue, request, visible_at, :now, :deliveries FROM (
    SELECT i.execution_id, json_extract(h.value, '$.ref') AS ref, json_extract(h.value, '$.queue') AS queue,
           h.value AS request,
           coalesce((SELECT json_extract(e.body, '$.at') FROM events AS e
                 WHERE e.execution_id = i.execution_id AND e.seq = json_extract(h.value, '$.ref')), 0) AS visible_at
    FROM instances AS i, json_each(i.covered) AS h WHERE i.execution_id = :execution_id)
WHERE true ON CONFLICT (execution_id, ref) DO NOTHING;

-- lease_covered: Give them rows with leases of their own (epoch 0), for the same worker and time; all, or one.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, deliveries, lease_owner)
SELECT i.execution_id, json_extract(h.value, '$.ref'), json_extract(h.value, '$.queue'), h.value,
       coalesce((SELECT json_extract(e.body, '$.at') FROM events AS e
                 WHERE e.execution_id = i.execution_id AND e.seq = json_extract(h.value, '$.ref')), 0),
       i.leased_until, 1, i.lease_owner
FROM instances AS i, json_each(i.covered) AS h
WHERE i.execution_id = :execution_id AND (:ref IS NULL OR json_extract(h.value, '$.ref') = :ref)
ON CONFLICT (execution_id, ref) DO NOTHING;

-- lease_request: The same for one that a commit leaves running, from its request.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, deliveries, lease_owner)
VALUES (?, ?, ?, ?,
        coalesce((SELECT json_extract(e.body, '$.at') FROM events AS e
                 WHERE e.execution_id = ? AND e.seq = ?), 0),
        ?, 1, ?)
ON CONFLICT (execution_id, ref) DO NOTHING;

-- retry_covered: Schedule the next attempt of an activity that may have no row; details and heartbeat stay unless the last
-- attempt had any.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, attempt, deliveries, details,
                        heartbeat_at)
VALUES (:execution_id, :ref, :queue, :request, :visible_at, :visible_at, :attempt, :deliveries, :details, :heartbeat_at)
ON CONFLICT (execution_id, ref) DO UPDATE
SET visible_at = excluded.visible_at, available_at = excluded.available_at, attempt = excluded.attempt,
    deliveries = excluded.deliveries, dead_letter = NULL, lease_owner = NULL,
    details = coalesce(excluded.details, details), heartbeat_at = coalesce(excluded.heartbeat_at, heartbeat_at);

-- retry_activity: Schedule the next attempt of an activity; details and heartbeat stay unless the last attempt had any.
UPDATE activities
SET visible_at = :next_at, available_at = :next_at, attempt = attempt + 1, deliveries = 0, dead_letter = NULL,
    lease_owner = NULL, details = coalesce(:details, details), heartbeat_at = coalesce(:heartbeat_at, heartbeat_at)
WHERE execution_id = :execution_id AND ref = :ref;

-- withdraw_activity: Delete an activity that is no longer wanted; a leased one only if it is answered.
DELETE FROM activities
WHERE execution_id = :execution_id AND ref = :ref AND (:answered OR lease_owner IS NULL)
  AND (NOT :never_started OR (lease_owner IS NULL AND deliveries = 0 AND attempt = 1));

-- claimable_activities: List the activities of a queue that may be claimed: available, or lease expired.
SELECT a.*, i.entity_id, i.status FROM activities AS a JOIN instances AS i USING (execution_id)
WHERE a.queue = :queue AND a.available_at <= :now AND i.paused IS NULL
ORDER BY a.available_at, a.execution_id, a.ref LIMIT :limit;

-- waiting_activity: Return a row if an activity of a queue waits to be claimed.
SELECT 1 FROM activities AS a JOIN instances AS i USING (execution_id)
WHERE a.queue = ? AND a.available_at <= ? AND i.paused IS NULL LIMIT 1;

-- lease_activity: Lease an activity, with a new epoch.
UPDATE activities
SET epoch = epoch + 1, lease_owner = :owner, available_at = :until, deliveries = deliveries + 1
WHERE execution_id = :execution_id AND ref = :ref;

-- mark_activity_dead: Make an activity a dead letter, which is not handed out.
UPDATE activities SET dead_letter = :reason, available_at = NULL, lease_owner = NULL
WHERE execution_id = :execution_id AND ref = :ref;

-- activity: Return one activity.
SELECT * FROM activities WHERE execution_id = :execution_id AND ref = :ref;

-- remove_activity: Delete an activity that is answered.
DELETE FROM activities WHERE execution_id = ? AND ref = ?;

-- extend_activity: Renew the lease of an activity, and keep the details of its last heartbeat.
UPDATE activities
SET available_at = :until, details = coalesce(:details, details), heartbeat_at = coalesce(:heartbeat_at, heartbeat_at)
WHERE execution_id = :execution_id AND ref = :ref;

-- release_activity: End the lease of an activity without an answer.
UPDATE activities SET available_at = visible_at, lease_owner = NULL, deliveries = max(0, deliveries - :undelivered)
WHERE execution_id = :execution_id AND ref = :ref;

-- purge_instance: Delete an execution.
DELETE FROM instances WHERE execution_id = :execution_id;

-- purge_tags: Delete its tags.
DELETE FROM instance_tags WHERE execution_id = :execution_id;

-- purge_events: Delete its log.
DELETE FROM events WHERE execution_id = :execution_id;

-- purge_inbox: Delete its inbox.
DELETE FROM inbox WHERE execution_id = :execution_id;

-- purge_activities: Delete its activities.
DELETE FROM activities WHERE execution_id = :execution_id;

-- purge_promises: Delete its promises.
DELETE FROM promises WHERE execution_id = :execution_id;

-- purge_answer: Delete its answer to its parent.
DELETE FROM answers WHERE execution_id = :execution_id;

-- purge_queries: Delete the queries of it.
DELETE FROM queries WHERE execution_id = :execution_id RETURNING query_id;

-- archive_instance: Note the archive that holds everything else of an execution; no lease and no work is left of it.
UPDATE instances SET archived = :archive, ready = 0, deliveries = 0, last_failure = '', leased_until = NULL,
    lease_owner = NULL, covered = NULL
WHERE execution_id = :execution_id;

-- reserve_instance: Count the entry that reserves a complete execution for an archive; no row if it may not be appended.
UPDATE instances SET last_seq = :seq
WHERE execution_id = :execution_id AND entity_id = :entity_id AND deactivated AND archived IS NULL AND last_seq = :seq - 1
  AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.execution_id = instances.execution_id);

-- activities_of: List the activities of an execution.
SELECT * FROM activities WHERE execution_id = :execution_id ORDER BY ref;

-- adopt_instance: Insert an execution that comes from another store.
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status,
                       created_at, closed_at, deactivated, last_seq, wake_at, tags, parked, dead_letter, ready, wake,
                       paused, parent, parent_id, first_run, signal_schemas, failure, archived)
VALUES (:execution_id, :entity_id, :run_id, :tree_id, :generation, :attempt, :kind, :name, :queue, :status,
        :created_at, :closed_at, :deactivated, :last_seq, :wake_at, :tags, :parked, :dead_letter, :ready, :wake,
        :paused, :parent, :parent_id, :first_run, :signal_schemas, :failure, :archived);

-- adopt_activity: Insert an activity that comes with it, without a lease.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, attempt, deliveries, dead_letter,
                        details, heartbeat_at)
VALUES (:execution_id, :ref, :queue, :request, :visible_at, CASE WHEN :dead_letter IS NULL THEN :visible_at END, :attempt,
        :deliveries, :dead_letter, :details, :heartbeat_at);

-- move_to_end: Give an execution the position after all others.
UPDATE instances SET position = (SELECT max(position) + 1 FROM instances) WHERE execution_id = :execution_id;

-- next_due: Return the next moment at which something becomes claimable by itself.
-- The queues are found by skips through the index, so that a million sleeping instances cost no more than one.
WITH RECURSIVE
sleeping (queue) AS (
    SELECT min(queue) FROM instances
    WHERE wake_at IS NOT NULL AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
    UNION ALL
    SELECT (SELECT min(i.queue) FROM instances AS i
            WHERE i.queue > sleeping.queue AND wake_at IS NOT NULL AND leased_until IS NULL AND dead_letter IS NULL
              AND paused IS NULL)
    FROM sleeping WHERE sleeping.queue IS NOT NULL
),
waiting (queue) AS (
    SELECT min(queue) FROM activities
    UNION ALL
    SELECT (SELECT min(a.queue) FROM activities AS a WHERE a.queue > waiting.queue)
    FROM waiting WHERE waiting.queue IS NOT NULL
)
SELECT min(moment) AS moment FROM (
    SELECT (SELECT min(wake_at) FROM instances AS i
            WHERE i.queue = sleeping.queue AND wake_at > :now AND leased_until IS NULL AND dead_letter IS NULL
              AND paused IS NULL) AS moment
    FROM sleeping
    UNION ALL
    SELECT min(leased_until) FROM instances WHERE leased_until > :now
    UNION ALL
    SELECT (SELECT min(available_at) FROM activities AS a WHERE a.queue = waiting.queue AND available_at > :now)
    FROM waiting
    UNION ALL
    SELECT min(leased_until) FROM queries WHERE leased_until > :now AND NOT completed
);

-- end_instance_leases: End the leases of a dead owner on instances.
UPDATE instances SET leased_until = :now WHERE lease_owner = :owner AND leased_until > :now;

-- end_activity_leases: End the leases of a dead owner on activities.
UPDATE activities SET available_at = :now WHERE lease_owner = :owner AND available_at > :now;

-- activity_dead_letters: List the dead letters among the activities of an instance.
SELECT dead_letter FROM activities WHERE execution_id = :execution_id AND dead_letter IS NOT NULL ORDER BY ref;

-- count_statuses: Count instances by status.
SELECT CASE WHEN paused IS NULL THEN status ELSE 'paused' END AS shown, count(*) AS number FROM instances GROUP BY shown;

-- count_ready: Count the instances that wait in each queue.
SELECT queue, sum(dead_letter IS NULL AND paused IS NULL AND leased_until IS NULL
                  AND (ready OR coalesce(wake_at <= :now, 0))) AS number
FROM instances GROUP BY queue;

-- count_activities: Count the activities of each queue: waiting, claimed, dead letters.
SELECT queue, sum(lease_owner IS NULL AND dead_letter IS NULL) AS waiting, sum(lease_owner IS NOT NULL) AS claimed,
       sum(dead_letter IS NOT NULL) AS dead_letters
FROM activities GROUP BY queue;

-- count_covered: Count the activities of each queue that the leases on their instances cover.
SELECT json_extract(h.value, '$.queue') AS queue, count(*) AS claimed
FROM instances AS i, json_each(i.covered) AS h
WHERE i.covered IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM activities AS a
                  WHERE a.execution_id = i.execution_id AND a.ref = json_extract(h.value, '$.ref'))
GROUP BY 1;

-- count_dead_letters: Count the instances that are dead letters.
SELECT count(*) AS number FROM instances WHERE dead_letter IS NOT NULL;

-- open_promise: Open a promise. One of an earlier attempt is opened again, unless its settlement waits in the inbox.
INSERT INTO promises (promise_id, execution_id, name, settled, schema)
VALUES (:promise_id, :execution_id, :name, 0, :schema)
ON CONFLICT (promise_id) DO UPDATE SET execution_id = :execution_id, name = :name, schema = :schema,
    position = CASE WHEN execution_id = :execution_id THEN position ELSE (SELECT max(position) + 1 FROM promises) END,
    settled = EXISTS (SELECT 1 FROM inbox
                      WHERE execution_id = :execution_id AND json_extract(body, '$.promise_id') = :promise_id);

-- adopt_promise: Insert a promise that comes from another store.
INSERT OR REPLACE INTO promises (promise_id, execution_id, name, settled, schema)
VALUES (:promise_id, :execution_id, :name, :settled, :schema);

-- settle_promise: Settle a promise; no row if it is settled, unknown, or its execution is closed.
-- The commit that closes the execution :ending may still settle its promises: the next attempt of the run takes them over.
UPDATE promises SET settled = 1
WHERE promise_id = :promise_id AND NOT settled AND (
    execution_id = :ending
    OR EXISTS (SELECT 1 FROM instances AS i WHERE i.execution_id = promises.execution_id AND i.closed_at IS NULL))
RETURNING execution_id;

-- close_promise: Mark a promise as settled that its execution no longer waits for.
UPDATE promises SET settled = 1 WHERE promise_id = :promise_id AND execution_id = :execution_id;

-- forget_promises: Delete the settled promises of an execution, except for the last ones.
DELETE FROM promises WHERE execution_id = :execution_id AND settled AND position <= (
    SELECT position FROM promises WHERE execution_id = :execution_id AND settled
    ORDER BY position DESC LIMIT 1 OFFSET :kept);

-- promise: Return one promise.
SELECT * FROM promises WHERE promise_id = :promise_id;

-- promises_named: List the promises of an execution with a name: the open ones, oldest first, then the others.
SELECT * FROM promises WHERE execution_id = :execution_id AND name = :name ORDER BY settled, position;

-- promises_of: List the promises of an execution.
SELECT * FROM promises WHERE execution_id = :execution_id ORDER BY position;

-- move_promises: Move the promises of an execution to its successor.
UPDATE promises SET execution_id = :successor WHERE execution_id = :execution_id;

-- holder_of_promise: Return the execution that a promise belongs to.
SELECT i.* FROM promises AS p JOIN instances AS i USING (execution_id) WHERE p.promise_id = :promise_id;

-- submit_query: Insert a query for a worker that has the code.
INSERT OR IGNORE INTO queries (query_id, entity_id, execution_id, queue, name, input, until)
VALUES (:query_id, :entity_id, :execution_id, :queue, :name, :input, :until);

-- expire_queries: Delete expired queries, with their results.
DELETE FROM queries WHERE until <= :now;

-- claimable_queries: List the unanswered queries of some queues that no worker has leased.
SELECT * FROM queries
WHERE NOT completed AND leased_until <= :now AND until > :now AND queue IN (SELECT value FROM json_each(:queues))
ORDER BY position LIMIT :limit;

-- lease_query: Lease a query.
UPDATE queries SET leased_until = :until WHERE query_id = :query_id;

-- complete_query: Store the first result of a query that has not expired.
UPDATE queries SET completed = 1, result = :result, failure = :failure
WHERE query_id = :query_id AND NOT completed AND until > :now;

-- query_result: Return a query that has not expired, with its result if there is one.
SELECT completed, result, failure FROM queries WHERE query_id = :query_id AND until > :now;

-- publish: Insert a message.
INSERT INTO messages (topic, at, body) VALUES (:topic, :now, :body);

-- expire_messages: Delete old messages.
DELETE FROM messages WHERE at < :before;

-- messages_after: Return the messages on a topic after a number.
SELECT body FROM messages WHERE topic = :topic AND number > :after ORDER BY number LIMIT :limit;

-- last_message: Return the number of the newest message, even if it was deleted.
SELECT coalesce(max(seq), 0) AS number FROM sqlite_sequence WHERE name = 'messages';

-- value: Return the value of a key that has not expired.
SELECT value FROM stored_values WHERE key = :key AND (expires_at IS NULL OR expires_at > :now);

-- put_value: Store a value, in place of the one that is there.
INSERT INTO stored_values (key, value, expires_at) VALUES (:key, :value, :expires_at)
ON CONFLICT (key) DO UPDATE SET value = :value, expires_at = :expires_at;

-- delete_value: Delete the value of a key.
DELETE FROM stored_values WHERE key = :key;

-- expire_values: Delete expired values.
DELETE FROM stored_values WHERE expires_at <= :now;

-- announce_worker: Insert or renew the record of a worker; when it started stays.
INSERT INTO workers (worker_id, owner, body, started_at, seen_at, expires_at)
VALUES (:worker_id, :owner, :body, :now, :now, :expires_at)
ON CONFLICT (worker_id) DO UPDATE SET owner = :owner, body = :body, seen_at = :now, expires_at = :expires_at;

-- live_workers: List the workers that have not expired.
SELECT worker_id, body, started_at, seen_at FROM workers WHERE expires_at > :now ORDER BY started_at, worker_id;

-- remove_worker: Delete the record of a worker that has stopped.
DELETE FROM workers WHERE worker_id = :worker_id;

-- remove_workers_of: Delete the workers of a dead owner.
DELETE FROM workers WHERE owner = :owner;

-- expire_workers: Delete expired workers.
DELETE FROM workers WHERE expires_at <= :now;

-- last_position: Return the position of the newest event of all, even if it was deleted.
SELECT coalesce(max(position), 0) AS position FROM events;

-- feed: List the events after a position, in the order of their commits.
SELECT e.position, e.execution_id, e.seq, e.body, json_extract(e.body, '$.type') AS type, i.entity_id, i.kind
FROM events AS e CROSS JOIN instances AS i USING (execution_id)
WHERE e.position > :after AND e.position <= :end
  AND (:types IS NULL OR json_extract(e.body, '$.type') IN (SELECT value FROM json_each(:types)))
ORDER BY e.position LIMIT :limit;

-- feed_of_entity: The same of one entity, found by its executions.
SELECT e.position, e.execution_id, e.seq, e.body, json_extract(e.body, '$.type') AS type, i.entity_id, i.kind
FROM instances AS i CROSS JOIN events AS e USING (execution_id)
WHERE i.entity_id = :entity_id AND +e.position > :after AND +e.position <= :end
  AND (:types IS NULL OR json_extract(e.body, '$.type') IN (SELECT value FROM json_each(:types)))
ORDER BY e.position LIMIT :limit;

-- keep_answer: Store the answer of a child, for a parent that requests the child again.
INSERT INTO answers (execution_id, body) VALUES (:execution_id, :body)
ON CONFLICT (execution_id) DO UPDATE SET body = excluded.body;

-- answer_of: Return the answer that an execution has sent to its parent.
SELECT body FROM answers WHERE execution_id = :execution_id;

-- first_of_child: Return the first execution of an entity that ran for the request of a child.
SELECT * FROM instances
WHERE entity_id = :entity_id AND first_run = :run_id AND parent_id IS NOT NULL ORDER BY position LIMIT 1;

-- answer_of_child: Return the answer of the last execution that ran for the request of a child.
SELECT body FROM answers WHERE execution_id = (
    SELECT execution_id FROM instances
    WHERE entity_id = :entity_id AND first_run = :run_id AND parent_id IS NOT NULL ORDER BY position DESC LIMIT 1
);
