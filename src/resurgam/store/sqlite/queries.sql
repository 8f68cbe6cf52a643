-- Every statement of the SQL stores. Each begins with its name and a sentence; parameters are named.

-- instance_by_execution: One instance with everything the store keeps of it.
SELECT * FROM instances WHERE execution_id = :execution_id;

-- progress: How far an instance has come.
SELECT status, wake, last_seq, epoch FROM instances WHERE execution_id = :execution_id;

-- progress_of: How far some instances have come.
SELECT execution_id, status, wake, last_seq FROM instances
WHERE execution_id IN (SELECT value FROM json_each(:execution_ids));

-- executions_of: The executions of an entity, oldest first.
SELECT * FROM instances WHERE entity_id = :entity_id ORDER BY place;

-- newest_execution: The newest execution of an entity.
SELECT * FROM instances WHERE entity_id = :entity_id ORDER BY place DESC LIMIT 1;

-- newest_of_run: The newest execution of one of its runs.
SELECT * FROM instances WHERE entity_id = :entity_id AND run_id = :run_id ORDER BY place DESC LIMIT 1;

-- same_execution: The execution of an entity with this run and attempt.
SELECT * FROM instances WHERE entity_id = :entity_id AND run_id = :run_id AND attempt = :attempt ORDER BY place LIMIT 1;

-- create_instance: A new execution, ready to be claimed unless it is put off.
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status,
                       created_at, last_seq, wake_at, tags, ready, paused, parent, parent_id, parent_key)
VALUES (:execution_id, :entity_id, :run_id, :tree_id, :generation, :attempt, :kind, :name, :queue, :status,
        :created_at, :last_seq, :wake_at, :tags, :ready, :paused, :parent, :parent_id, :parent_key);

-- append_event: One more entry of a log.
INSERT INTO events (execution_id, seq, body) VALUES (:execution_id, :seq, :body);

-- forget_event: An entry is kept under a place and not read again; one that is forgotten already moves.
UPDATE events SET forgotten = :place WHERE execution_id = :execution_id AND seq = :seq;

-- drop_events: What is forgotten under these places is gone for good.
DELETE FROM events WHERE execution_id = :execution_id AND forgotten >= :start AND forgotten < :end;

-- events_after: The log of an execution beyond a point.
SELECT seq, body FROM events
WHERE execution_id = :execution_id AND seq > :after AND forgotten IS NULL ORDER BY seq;

-- last_events: The end of a log, without what is forgotten or with it; a negative number of entries means all.
SELECT * FROM (
    SELECT seq, forgotten, body FROM events
    WHERE execution_id = :execution_id AND (:forgotten OR forgotten IS NULL) ORDER BY seq DESC LIMIT :last)
ORDER BY seq;

-- raise_wake: Count that something enters an inbox; an instance that nobody holds becomes ready, unless it is put off.
-- Its turn is the moment at which it became ready, and stays when more comes.
UPDATE instances SET wake = wake + 1,
    ready = CASE WHEN ready THEN ready WHEN leased_until IS NULL AND status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id RETURNING wake;

-- put_into_inbox: Something to be told to an instance.
INSERT INTO inbox (execution_id, wake, body) VALUES (:execution_id, :wake, :body);

-- inbox_since: What came into an inbox after the counter had this value.
SELECT id, body FROM inbox WHERE execution_id = :execution_id AND wake > :wake ORDER BY id;

-- inboxes: What is in several inboxes.
SELECT id, execution_id, body FROM inbox
WHERE execution_id IN (SELECT value FROM json_each(:execution_ids)) ORDER BY id;

-- take_from_inbox: What was consumed, by id.
DELETE FROM inbox WHERE execution_id = :execution_id AND id IN (SELECT value FROM json_each(:ids));

-- pause_instance: An instance is halted, alone or with its tree; no row if that is so already.
UPDATE instances SET paused = :paused
WHERE execution_id = :execution_id AND closed_at IS NULL AND (paused IS NULL OR (paused = 'alone' AND :paused = 'tree'));

-- resume_instance: An instance goes on; no row if it was not halted.
UPDATE instances SET paused = NULL, ready = CASE WHEN ready THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND paused IS NOT NULL;

-- begin_instance: An instance that was put off begins; no row if it was not.
UPDATE instances SET status = 'running', wake_at = NULL WHERE execution_id = :execution_id AND status = 'scheduled';

-- move_inbox: What is unread of some types goes over to another execution, behind what that has already.
INSERT INTO inbox (execution_id, wake, body)
SELECT :successor, :wake, body FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types))
ORDER BY id;

-- forget_moved: It is not here any more.
DELETE FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types));

-- types_in_inbox: Which of some types are in an inbox.
SELECT DISTINCT json_extract(body, '$.type') AS type FROM inbox
WHERE execution_id = :execution_id AND json_extract(body, '$.type') IN (SELECT value FROM json_each(:types));

-- claimable_instances: What a worker may claim: ready, due, its lease run out, or parked and not tried by it.
-- In the order in which they became so. What is parked has waited since it was created.
SELECT i.*, claimable.ready_at FROM instances AS i JOIN (
    SELECT place, min(ready_at) AS ready_at FROM (
        SELECT * FROM (
            SELECT place, ready AS ready_at FROM instances AS i
            WHERE queue = :queue AND ready AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
              AND status <> 'diverged'
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY ready, place LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT place, wake_at * 1000 AS ready_at FROM instances AS i
            WHERE queue = :queue AND wake_at <= :now AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL
              AND status <> 'diverged'
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY wake_at, place LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT place, leased_until * 1000 AS ready_at FROM instances AS i
            WHERE leased_until <= :now AND dead_letter IS NULL AND paused IS NULL AND queue = :queue
              AND (status <> 'scheduled' OR wake_at <= :now)
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY leased_until, place LIMIT :limit)
        UNION ALL
        SELECT * FROM (
            SELECT place, created_at * 1000 AS ready_at FROM instances AS i
            WHERE queue = :queue AND status = 'diverged' AND dead_letter IS NULL AND paused IS NULL AND leased_until IS NULL
              AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
            ORDER BY created_at, place LIMIT :limit)
    ) GROUP BY place
) AS claimable USING (place) ORDER BY claimable.ready_at, place LIMIT :limit;

-- claimable_at_once: An instance, if a worker may have it and nothing older waits in its queue.
SELECT * FROM instances AS i
WHERE execution_id = :execution_id AND leased_until IS NULL AND dead_letter IS NULL AND paused IS NULL AND status = 'running'
  AND NOT EXISTS (SELECT 1 FROM tried WHERE tried.execution_id = i.execution_id AND tried.worker = :worker)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS older
      WHERE older.queue = i.queue AND older.ready AND older.leased_until IS NULL AND older.dead_letter IS NULL
        AND older.paused IS NULL AND older.status <> 'diverged' AND older.place <> i.place)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS due
      WHERE due.queue = i.queue AND due.wake_at <= :now AND due.leased_until IS NULL AND due.dead_letter IS NULL
        AND due.paused IS NULL AND due.status <> 'diverged' AND due.place <> i.place)
  AND NOT EXISTS (
      SELECT 1 FROM instances AS lost
      WHERE lost.leased_until <= :now AND lost.queue = i.queue AND lost.dead_letter IS NULL AND lost.paused IS NULL
        AND lost.status <> 'diverged');

-- lease_instance: A lease with a new epoch.
UPDATE instances
SET epoch = epoch + 1, lease_owner = :owner, leased_until = :until, deliveries = deliveries + 1, ready = 0
WHERE place = :place;

-- bury_instance: An instance that is no longer handed out.
UPDATE instances SET dead_letter = :dead_letter, leased_until = NULL, lease_owner = NULL, ready = 0
WHERE execution_id = :execution_id;

-- commit_step: The fenced update of a commit that changes nothing but how far the log goes. No row: see the next two.
UPDATE instances SET last_seq = :last_seq, wake_at = :wake_at, deliveries = 0
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL AND last_seq = :base_seq
  AND wake = :wake AND status = 'running' AND parked IS NULL AND paused IS NULL AND last_failure = '';

-- commit_and_keep: The fenced update of a commit whose lease runs on. No row: it is lost, or the state is another.
-- What somebody has begun meanwhile is not put off again.
UPDATE instances
SET status = CASE WHEN :status = 'scheduled' AND status = 'running' THEN status ELSE :status END,
    closed_at = coalesce(closed_at, :closed_at), paused = CASE WHEN :closed_at IS NULL THEN paused END,
    deactivated = :deactivated, last_seq = :last_seq, wake_at = :wake_at, parked = :parked, deliveries = 0,
    last_failure = ''
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL AND last_seq = :base_seq
  AND (wake = :wake OR NOT :strict)
RETURNING wake, paused;

-- commit_and_release: The same with the end of the lease; ready again exactly if the wake counter has moved.
UPDATE instances
SET status = CASE WHEN :status = 'scheduled' AND status = 'running' THEN status ELSE :status END,
    closed_at = coalesce(closed_at, :closed_at), paused = CASE WHEN :closed_at IS NULL THEN paused END,
    deactivated = :deactivated, last_seq = :last_seq, wake_at = :wake_at, parked = :parked, deliveries = 0,
    last_failure = '',
    leased_until = NULL, lease_owner = NULL,
    ready = CASE WHEN wake <> :wake AND NOT (:status = 'scheduled' AND status <> 'running') THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL AND last_seq = :base_seq
  AND (wake = :wake OR NOT :strict)
RETURNING wake, paused;

-- keep_signal_schemas: What the code of an instance takes for signals, from now on.
UPDATE instances SET signal_schemas = :signal_schemas WHERE execution_id = :execution_id;

-- note_failure: The type by which an instance failed.
UPDATE instances SET failure = :failure WHERE execution_id = :execution_id;

-- note_heartbeat: When an earlier attempt of an activity sent its last heartbeat.
UPDATE activities SET heartbeat_at = :heartbeat_at WHERE execution_id = :execution_id AND ref = :ref;

-- let_go: The end of a lease that a commit kept in vain.
UPDATE instances SET leased_until = NULL, lease_owner = NULL,
    ready = CASE WHEN wake <> :wake AND status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id;

-- release_instance: The end of a lease without a commit; ready again.
UPDATE instances
SET leased_until = NULL, lease_owner = NULL, ready = CASE WHEN status <> 'scheduled' THEN :ready_at ELSE 0 END, deliveries = max(0, deliveries - :undelivered),
    last_failure = :last_failure
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL;

-- terminate_instance: The end of an instance, whoever holds it.
UPDATE instances
SET status = :status, closed_at = :now, last_seq = :seq, wake_at = NULL, parked = NULL, dead_letter = NULL, paused = NULL,
    ready = :ready_at, deliveries = 0, epoch = epoch + 1, leased_until = NULL, lease_owner = NULL
WHERE execution_id = :execution_id;

-- forget_tries: Whoever has tried a parked instance may try it again.
DELETE FROM tried WHERE execution_id = :execution_id;

-- revive_instance: An instance that was put aside, or is parked, is handed out again.
UPDATE instances SET dead_letter = NULL, deliveries = 0, ready = CASE WHEN status <> 'scheduled' THEN :ready_at ELSE 0 END
WHERE execution_id = :execution_id AND (dead_letter IS NOT NULL OR parked IS NOT NULL);

-- revive_activities: The same for activities of it that were put aside.
UPDATE activities SET dead_letter = NULL, deliveries = 0, available_at = visible_at
WHERE execution_id = :execution_id AND dead_letter IS NOT NULL;

-- extend_instance: A lease that runs on.
UPDATE instances SET leased_until = :until
WHERE execution_id = :execution_id AND epoch = :epoch AND leased_until IS NOT NULL RETURNING wake;

-- mark_tried: A start of a worker whose code does not fit.
INSERT OR IGNORE INTO tried (execution_id, worker) VALUES (:execution_id, :worker);

-- schedule_activity: An activity to be run from a moment on, by whoever claims it or by its first owner.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, attempt, epoch, deliveries,
                        lease_owner, details)
VALUES (:execution_id, :ref, :queue, :request, :visible_at, :available_at, :attempt, :epoch, :deliveries, :owner,
        :details);

-- withdraw_activity: An activity that is no longer wanted; one that somebody is at only if it is answered.
DELETE FROM activities
WHERE execution_id = :execution_id AND ref = :ref AND (:answered OR lease_owner IS NULL)
  AND (NOT :never_started OR (lease_owner IS NULL AND deliveries = 0 AND attempt = 1))
RETURNING ref;

-- claimable_activities: Activities of a queue whose time has come, or whose lease has run out.
SELECT a.*, i.entity_id, i.status FROM activities AS a JOIN instances AS i USING (execution_id)
WHERE a.queue = :queue AND a.available_at <= :now AND i.paused IS NULL
ORDER BY a.available_at, a.execution_id, a.ref LIMIT :limit;

-- queues_with_work: The queues in which something waits to be claimed.
SELECT value AS queue FROM json_each(:queues) AS queues
WHERE EXISTS (SELECT 1 FROM activities AS a JOIN instances AS i USING (execution_id)
              WHERE a.queue = queues.value AND a.available_at <= :now AND i.paused IS NULL);

-- lease_activity: A lease with a new epoch.
UPDATE activities
SET epoch = epoch + 1, lease_owner = :owner, available_at = :until, deliveries = deliveries + 1
WHERE execution_id = :execution_id AND ref = :ref;

-- bury_activity: An activity that is no longer handed out.
UPDATE activities SET dead_letter = :dead_letter, available_at = NULL, lease_owner = NULL
WHERE execution_id = :execution_id AND ref = :ref;

-- activity: One activity.
SELECT * FROM activities WHERE execution_id = :execution_id AND ref = :ref;

-- remove_activity: An activity that is answered.
DELETE FROM activities WHERE execution_id = :execution_id AND ref = :ref;

-- extend_activity: A lease that runs on, with what the attempt has told.
UPDATE activities
SET available_at = :until, details = coalesce(:details, details), heartbeat_at = coalesce(:heartbeat_at, heartbeat_at)
WHERE execution_id = :execution_id AND ref = :ref;

-- release_activity: The end of a lease without an answer.
UPDATE activities SET available_at = visible_at, lease_owner = NULL, deliveries = max(0, deliveries - :undelivered)
WHERE execution_id = :execution_id AND ref = :ref;

-- purge_instance: Every trace of an execution.
DELETE FROM instances WHERE execution_id = :execution_id;

-- purge_events: The same for its log.
DELETE FROM events WHERE execution_id = :execution_id;

-- purge_inbox: The same for its inbox.
DELETE FROM inbox WHERE execution_id = :execution_id;

-- purge_activities: The same for its activities.
DELETE FROM activities WHERE execution_id = :execution_id;

-- purge_promises: The same for its promises.
DELETE FROM promises WHERE execution_id = :execution_id;

-- purge_questions: The same for what was asked of it.
DELETE FROM questions WHERE execution_id = :execution_id RETURNING query_id;

-- activities_of: The activities of an execution.
SELECT * FROM activities WHERE execution_id = :execution_id ORDER BY ref;

-- adopt_instance: An execution that comes from another store.
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status,
                       created_at, closed_at, deactivated, last_seq, wake_at, tags, parked, dead_letter, ready, wake, paused, parent,
                       parent_id, parent_key, signal_schemas, failure, place)
VALUES (:execution_id, :entity_id, :run_id, :tree_id, :generation, :attempt, :kind, :name, :queue, :status,
        :created_at, :closed_at, :deactivated, :last_seq, :wake_at, :tags, :parked, :dead_letter, :ready, :wake, :paused, :parent,
        :parent_id, :parent_key, :signal_schemas, :failure, (SELECT coalesce(max(place), 0) + 1 FROM instances));

-- adopt_activity: An activity that comes with it; nobody holds it here.
INSERT INTO activities (execution_id, ref, queue, request, visible_at, available_at, attempt, deliveries, dead_letter, details,
                        heartbeat_at)
VALUES (:execution_id, :ref, :queue, :request, :visible_at, CASE WHEN :dead_letter IS NULL THEN :visible_at END, :attempt,
        :deliveries, :dead_letter, :details, :heartbeat_at);

-- move_to_end: An execution takes the place after all others.
UPDATE instances SET place = (SELECT max(place) + 1 FROM instances) WHERE execution_id = :execution_id;

-- next_due: The next moment at which something becomes claimable by itself; what is due already, is claimable.
-- The queues are found by leaps through the index, so that a million sleepers cost no more than one.
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
    SELECT min(leased_until) FROM questions WHERE leased_until > :now AND NOT replied
);

-- end_instance_leases: The leases of an owner that is dead end at once.
UPDATE instances SET leased_until = :now WHERE lease_owner = :owner AND leased_until > :now;

-- end_activity_leases: The same for activities.
UPDATE activities SET available_at = :now WHERE lease_owner = :owner AND available_at > :now;

-- listed_instances: A page of instances, newest first. :before and :before_id are where the page begins.
SELECT * FROM instances
WHERE (:status IS NULL OR CASE WHEN paused IS NULL THEN status ELSE 'paused' END = :status)
  AND (:kind IS NULL OR kind = :kind) AND (:name IS NULL OR name = :name)
  AND created_at >= :since AND (created_at, execution_id) < (:before, :before_id)
  AND (NOT :newest_only OR NOT EXISTS (
      SELECT 1 FROM instances AS newer
      WHERE newer.entity_id = instances.entity_id AND newer.place > instances.place))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) AS wanted
      WHERE NOT EXISTS (SELECT 1 FROM json_each(instances.tags) AS had
                        WHERE had.key = wanted.key AND had.value = wanted.value))
ORDER BY created_at DESC, execution_id DESC LIMIT :limit;

-- listed_failed: The same of those that failed by one type.
SELECT * FROM instances
WHERE failure = :failure
  AND (:status IS NULL OR CASE WHEN paused IS NULL THEN status ELSE 'paused' END = :status)
  AND (:kind IS NULL OR kind = :kind) AND (:name IS NULL OR name = :name)
  AND created_at >= :since AND (created_at, execution_id) < (:before, :before_id)
  AND (NOT :newest_only OR NOT EXISTS (
      SELECT 1 FROM instances AS newer
      WHERE newer.entity_id = instances.entity_id AND newer.place > instances.place))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) AS wanted
      WHERE NOT EXISTS (SELECT 1 FROM json_each(instances.tags) AS had
                        WHERE had.key = wanted.key AND had.value = wanted.value))
ORDER BY created_at DESC, execution_id DESC LIMIT :limit;

-- listed_tree: The same of one tree.
SELECT * FROM instances
WHERE tree_id = :tree_id
  AND (:status IS NULL OR CASE WHEN paused IS NULL THEN status ELSE 'paused' END = :status)
  AND (:kind IS NULL OR kind = :kind) AND (:name IS NULL OR name = :name) AND (:failure IS NULL OR failure = :failure)
  AND created_at >= :since AND (created_at, execution_id) < (:before, :before_id)
  AND (NOT :newest_only OR NOT EXISTS (
      SELECT 1 FROM instances AS newer
      WHERE newer.entity_id = instances.entity_id AND newer.place > instances.place))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) AS wanted
      WHERE NOT EXISTS (SELECT 1 FROM json_each(instances.tags) AS had
                        WHERE had.key = wanted.key AND had.value = wanted.value))
ORDER BY created_at DESC, execution_id DESC LIMIT :limit;

-- listed_children: The same of those that one entity has begun, in one tree or in any.
SELECT * FROM instances
WHERE parent_id = :parent AND (:tree_id IS NULL OR tree_id = :tree_id)
  AND (:status IS NULL OR CASE WHEN paused IS NULL THEN status ELSE 'paused' END = :status)
  AND (:kind IS NULL OR kind = :kind) AND (:name IS NULL OR name = :name) AND (:failure IS NULL OR failure = :failure)
  AND created_at >= :since AND (created_at, execution_id) < (:before, :before_id)
  AND (NOT :newest_only OR NOT EXISTS (
      SELECT 1 FROM instances AS newer
      WHERE newer.entity_id = instances.entity_id AND newer.place > instances.place))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:tags) AS wanted
      WHERE NOT EXISTS (SELECT 1 FROM json_each(instances.tags) AS had
                        WHERE had.key = wanted.key AND had.value = wanted.value))
ORDER BY created_at DESC, execution_id DESC LIMIT :limit;

-- ended_instances: Complete executions that ended before a moment, those first that ended first.
SELECT * FROM instances
WHERE deactivated AND closed_at < :before AND (closed_at, execution_id) > (:closed_at, :execution_id)
  AND (:status IS NULL OR status = :status) AND (:name IS NULL OR name = :name)
ORDER BY closed_at, execution_id LIMIT :limit;

-- activity_dead_letters: What is wrong with the activities of an instance.
SELECT dead_letter FROM activities WHERE execution_id = :execution_id AND dead_letter IS NOT NULL ORDER BY ref;

-- count_statuses: Instances by status.
SELECT CASE WHEN paused IS NULL THEN status ELSE 'paused' END AS shown, count(*) AS number FROM instances GROUP BY shown;

-- count_ready: Instances waiting in each queue.
SELECT queue, sum(dead_letter IS NULL AND paused IS NULL AND leased_until IS NULL AND (ready OR coalesce(wake_at <= :now, 0))) AS number
FROM instances GROUP BY queue;

-- count_activities: Activities of each queue, waiting and claimed.
SELECT queue, sum(lease_owner IS NULL AND dead_letter IS NULL) AS waiting, sum(lease_owner IS NOT NULL) AS claimed,
       sum(dead_letter IS NOT NULL) AS dead_letter
FROM activities GROUP BY queue;

-- count_dead: Instances that are no longer handed out.
SELECT count(*) AS number FROM instances WHERE dead_letter IS NOT NULL;

-- open_promise: A promise that can be settled from now on. One that is here already, of an earlier attempt, is open again
-- unless its settlement waits to be read.
INSERT INTO promises (promise_id, execution_id, name, settled, schema)
VALUES (:promise_id, :execution_id, :name, 0, :schema)
ON CONFLICT (promise_id) DO UPDATE SET execution_id = :execution_id, name = :name, schema = :schema,
    place = CASE WHEN execution_id = :execution_id THEN place ELSE (SELECT max(place) + 1 FROM promises) END,
    settled = EXISTS (SELECT 1 FROM inbox
                      WHERE execution_id = :execution_id AND json_extract(body, '$.promise_id') = :promise_id);

-- adopt_promise: A promise that comes from another store.
INSERT OR REPLACE INTO promises (promise_id, execution_id, name, settled, schema)
VALUES (:promise_id, :execution_id, :name, :settled, :schema);

-- settle_promise: Settle a promise; no row if it was settled before, its execution has ended, or it is unknown.
-- The commit that ends the *ending* execution may still settle its promises: the next attempt of the run takes them over.
UPDATE promises SET settled = 1
WHERE promise_id = :promise_id AND NOT settled AND (
    execution_id = :ending
    OR EXISTS (SELECT 1 FROM instances AS i WHERE i.execution_id = promises.execution_id AND i.closed_at IS NULL))
RETURNING execution_id;

-- close_promise: The same by its own execution, which waits for it no longer.
UPDATE promises SET settled = 1 WHERE promise_id = :promise_id AND execution_id = :execution_id;

-- forget_promises: Of the settled promises of an execution only the last are kept.
DELETE FROM promises WHERE execution_id = :execution_id AND settled AND place <= (
    SELECT place FROM promises WHERE execution_id = :execution_id AND settled
    ORDER BY place DESC LIMIT 1 OFFSET :kept);

-- promise: One promise.
SELECT * FROM promises WHERE promise_id = :promise_id;

-- promises_named: The promises of an execution with a name: those that are open, oldest first, then the others.
SELECT * FROM promises WHERE execution_id = :execution_id AND name = :name ORDER BY settled, place;

-- promises_of: The promises of an execution.
SELECT * FROM promises WHERE execution_id = :execution_id ORDER BY place;

-- move_promises: They are another execution's from now on.
UPDATE promises SET execution_id = :successor WHERE execution_id = :execution_id;

-- holder_of_promise: The execution that a promise belongs to.
SELECT i.* FROM promises AS p JOIN instances AS i USING (execution_id) WHERE p.promise_id = :promise_id;

-- ask_question: A question for whoever has the code.
INSERT OR IGNORE INTO questions (query_id, execution_id, queue, name, input, until)
VALUES (:query_id, :execution_id, :queue, :name, :input, :until);

-- give_up_questions: Questions whose time is over go, with their replies.
DELETE FROM questions WHERE until <= :now;

-- open_questions: Questions of some queues that nobody has in hand.
SELECT * FROM questions
WHERE NOT replied AND leased_until <= :now AND until > :now AND queue IN (SELECT value FROM json_each(:queues))
ORDER BY place LIMIT :limit;

-- lease_question: Somebody has it in hand until then.
UPDATE questions SET leased_until = :until WHERE query_id = :query_id;

-- answer_question: The first reply to a question that still waits for one.
UPDATE questions SET replied = 1, result = :result, failure = :failure
WHERE query_id = :query_id AND NOT replied AND until > :now;

-- reply: A question that is not given up, with its reply if there is one.
SELECT replied, result, failure FROM questions WHERE query_id = :query_id AND until > :now;

-- publish: A message for whoever listens.
INSERT INTO messages (topic, at, body) VALUES (:topic, :now, :body);

-- forget_messages: Those that are too old.
DELETE FROM messages WHERE at < :before;

-- messages_after: What was published on a topic after a number.
SELECT body FROM messages WHERE topic = :topic AND number > :after ORDER BY number LIMIT :limit;

-- last_message: The number of the newest message, whether it is still there or not.
SELECT coalesce(max(seq), 0) AS number FROM sqlite_sequence WHERE name = 'messages';

-- keep_secret: The secret of this store, if it has none yet.
INSERT OR IGNORE INTO secret (place, value) VALUES (1, :value);

-- secret: The secret of this store.
SELECT value FROM secret;
