-- Notices: what a call has changed that others may wait for. They are collected in a setting that ends with the transaction.
-- The caller gets them with its answer; other processes by NOTIFY, once per call.
-- tables: announced; locked last, in the order of queues

-- Collect a notice, as a JSON array of strings; most are collected once. What becomes of an offer is told by the last one.
CREATE FUNCTION {schema}.notices_collect_{code}(VARIADIC notice text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    collected CONSTANT text := coalesce(current_setting('resurgam.notices', true), '');
    added CONSTANT text := array_to_json(notice)::text || ',';
BEGIN
    IF notice[1] IN ('offer', 'lease') OR strpos(collected, added) = 0 THEN
        PERFORM set_config('resurgam.notices', collected || added, true);
    END IF;
END $$;

-- Tell the caller and, unless *others* is false, all processes.
CREATE FUNCTION {schema}.notices_note_{code}(kind text, value text, others boolean DEFAULT true)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}(CASE WHEN others THEN 'all' ELSE 'own' END, kind, value);
END $$;

-- Something in a queue can be claimed: an instance, an activity or a query.
CREATE FUNCTION {schema}.notices_work_{code}(queue text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('all', 'work', queue);
END $$;

-- An instance is offered; who leases it in the same call takes that back.
CREATE FUNCTION {schema}.notices_offer_{code}(state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('offer', state.execution_id, state.queue);
END $$;

-- An instance is leased.
CREATE FUNCTION {schema}.notices_lease_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('lease', state.execution_id, state.queue);
    PERFORM {schema}.notices_collect_{code}('due', state.queue, state.leased_until::text);
END $$;

-- Something in a queue can be claimed from a moment on.
CREATE FUNCTION {schema}.notices_due_{code}(frame {schema}.frame_{code}, queue text, moment bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('due', queue, moment::text);
END $$;

-- The inbox of an instance has a new entry; others hear of it if one of them holds the lease.
CREATE FUNCTION {schema}.notices_inbox_{code}(frame {schema}.frame_{code}, state {schema}.states)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}(
        CASE WHEN state.owner <> frame.owner THEN 'all' ELSE 'own' END, 'inbox', state.execution_id);
END $$;

-- An execution is closed.
CREATE FUNCTION {schema}.notices_closed_{code}(frame {schema}.frame_{code}, execution_id text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('all', 'closed', execution_id);
END $$;

-- Return the advisory lock that stores share while they follow logs or the feed. All versions of the code have the same.
CREATE FUNCTION {schema}.notices_followers_{code}()
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT hashtextextended('resurgam followers of ' || {channel}, 0)
$$;

-- Whether a store follows logs or the feed. The lock is held for a moment only: two calls that ask at once may both hear yes.
CREATE FUNCTION {schema}.notices_followed_{code}()
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    key bigint := {schema}.notices_followers_{code}();
BEGIN
    IF pg_try_advisory_lock(key) THEN
        PERFORM pg_advisory_unlock(key);
        RETURN false;
    END IF;
    RETURN true;
END $$;

-- A log has grown, and the feed with it. Every step does this, so others are told only while one of them listens.
CREATE FUNCTION {schema}.notices_log_{code}(frame {schema}.frame_{code}, execution_id text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.notices_collect_{code}('log', execution_id);
END $$;

-- Return those of some due moments, one for each queue, that other processes must hear of: they come before the one that was
-- last announced, or that one is over.
CREATE FUNCTION {schema}.notices_announce_{code}(frame {schema}.frame_{code}, queues text[], moments bigint[])
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- A moment that is over before this transaction is committed, within milliseconds, tells nobody.
    over CONSTANT bigint := 50 + CASE WHEN frame.manual THEN frame.now ELSE {schema}.frame_clock_{code}() END;
    known bigint;
    told text[] := '{}';
BEGIN
    FOR number IN 1 .. cardinality(queues) LOOP
        SELECT a.moment INTO known FROM {schema}.announced a WHERE a.queue = queues[number];
        CONTINUE WHEN known > over AND known <= moments[number];
        INSERT INTO {schema}.announced AS a (queue, moment) VALUES (queues[number], moments[number])
        ON CONFLICT (queue) DO UPDATE SET moment = excluded.moment
        WHERE a.moment <= over OR a.moment > excluded.moment;
        IF FOUND THEN told := told || ARRAY['due', queues[number] || ' ' || moments[number]]; END IF;
    END LOOP;
    RETURN told;
END $$;

-- Tell other processes, and return the notices for the caller: kind and value in turn.
CREATE FUNCTION {schema}.notices_send_{code}(frame {schema}.frame_{code})
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    collected text := current_setting('resurgam.notices', true);
    mine text[];     -- kind and value in turn: those for the caller alone
    told text[];     -- those for all
    logs text[];
    queues text[];
    moments bigint[];
    payload text;
BEGIN
    IF coalesce(collected, '') = '' THEN RETURN '{}'; END IF;
    PERFORM set_config('resurgam.notices', '', true);
    WITH list AS MATERIALIZED (
        SELECT one ->> 0 AS change, one ->> 1 AS what, one ->> 2 AS value, number
        FROM jsonb_array_elements(('[' || rtrim(collected, ',') || ']')::jsonb) WITH ORDINALITY AS l (one, number)
    ), work AS (
        SELECT DISTINCT ON (what) change, value FROM list WHERE change IN ('offer', 'lease') ORDER BY what, number DESC
    )
    SELECT
        ARRAY(
            SELECT text FROM (
                SELECT what, value FROM list WHERE change = 'all'
                UNION SELECT 'work', value FROM work WHERE change = 'offer'
            ) n CROSS JOIN LATERAL unnest(ARRAY[n.what, n.value]) AS text
        ),
        ARRAY(
            SELECT text FROM (SELECT DISTINCT what, value FROM list WHERE change = 'own') n
            CROSS JOIN LATERAL unnest(ARRAY[n.what, n.value]) AS text
        ),
        ARRAY(
            SELECT text FROM (SELECT DISTINCT what FROM list WHERE change = 'log') n
            CROSS JOIN LATERAL unnest(ARRAY['log', n.what]) AS text
        ),
        ARRAY(SELECT DISTINCT what COLLATE "C" FROM list WHERE change = 'due' ORDER BY 1),
        ARRAY(
            SELECT min(value::bigint) FROM list WHERE change = 'due' GROUP BY what COLLATE "C" ORDER BY what COLLATE "C"
        )
    INTO told, mine, logs, queues, moments;
    FOR number IN 1 .. cardinality(queues) LOOP
        mine := mine || ARRAY['due', queues[number] || ' ' || moments[number]];
    END LOOP;
    mine := told || mine || logs;
    told := told || {schema}.notices_announce_{code}(frame, queues, moments);
    IF logs <> '{}' AND {schema}.notices_followed_{code}() THEN told := told || logs; END IF;
    IF told <> '{}' THEN
        payload := array_to_json(frame.owner || told)::text;
        IF octet_length(payload) > 7900 THEN payload := json_build_array(frame.owner, '*', '')::text; END IF;
        PERFORM pg_notify({channel}, payload);
    END IF;
    RETURN mine;
END $$;
