-- Notices: what a call has changed that others may wait for. They are collected in a setting that ends with the transaction.
-- The caller gets them with its answer; other processes by NOTIFY, once per call.
-- tables: announced; locked last, in the order of queues

-- Collect a notice: a JSON array of strings.
CREATE FUNCTION {schema}.notices_collect_{code}(VARIADIC notice text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('resurgam.notices',
        coalesce(current_setting('resurgam.notices', true), '') || array_to_json(notice)::text || ',', true);
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

-- Tell other processes what all may wait for, logs that one of them follows, and due moments that they do not know.
CREATE FUNCTION {schema}.notices_tell_{code}(
    frame {schema}.frame_{code}, told text[], list jsonb, queues text[], moments bigint[]
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    payload text;
BEGIN
    IF list @> '[["log"]]' AND {schema}.notices_followed_{code}() THEN
        told := told || (
            SELECT array_agg(text) FROM (
                SELECT DISTINCT one ->> 1 AS id FROM jsonb_array_elements(list) one WHERE one ->> 0 = 'log'
            ) n CROSS JOIN LATERAL unnest(ARRAY['log', n.id]) AS text
        );
    END IF;
    IF queues IS NOT NULL THEN told := told || {schema}.notices_announce_{code}(frame, queues, moments); END IF;
    IF told = '{}' THEN RETURN; END IF;
    payload := array_to_json(frame.owner || told)::text;
    IF octet_length(payload) > 7900 THEN payload := json_build_array(frame.owner, '*', '')::text; END IF;
    PERFORM pg_notify({channel}, payload);
END $$;

-- Tell other processes, and return the notices for the caller: kind and value in turn.
CREATE FUNCTION {schema}.notices_send_{code}(frame {schema}.frame_{code})
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    collected text := current_setting('resurgam.notices', true);
    list jsonb;
    mine text[];     -- kind and value in turn: those for the caller alone
    told text[];     -- those for all
    queues text[];
    moments bigint[];
BEGIN
    IF coalesce(collected, '') = '' THEN RETURN '{}'; END IF;
    PERFORM set_config('resurgam.notices', '', true);
    list := ('[' || rtrim(collected, ',') || ']')::jsonb;
    SELECT array_agg(n.queue ORDER BY n.queue COLLATE "C"), array_agg(n.moment ORDER BY n.queue COLLATE "C") INTO queues, moments
    FROM (
        SELECT one ->> 1 AS queue, min((one ->> 2)::bigint) AS moment
        FROM jsonb_array_elements(list) one WHERE one ->> 0 = 'due' GROUP BY 1
    ) n;
    SELECT coalesce(array_agg(text), '{}') INTO told FROM (
        SELECT DISTINCT one ->> 1 AS kind, one ->> 2 AS value FROM jsonb_array_elements(list) one WHERE one ->> 0 = 'all'
        UNION
        SELECT 'work', last.queue FROM (
            SELECT DISTINCT ON (one ->> 1) one ->> 0 AS change, one ->> 2 AS queue
            FROM jsonb_array_elements(list) WITH ORDINALITY AS l (one, number)
            WHERE one ->> 0 IN ('offer', 'lease') ORDER BY one ->> 1, number DESC
        ) last WHERE last.change = 'offer'
    ) n CROSS JOIN LATERAL unnest(ARRAY[n.kind, n.value]) AS text;
    SELECT coalesce(array_agg(text), '{}') INTO mine FROM (
        SELECT DISTINCT one ->> 1 AS kind, one ->> 2 AS value FROM jsonb_array_elements(list) one WHERE one ->> 0 = 'own'
        UNION ALL
        SELECT 'due', queues[number] || ' ' || moments[number] FROM generate_subscripts(queues, 1) AS number
        UNION ALL
        SELECT DISTINCT 'log', one ->> 1 FROM jsonb_array_elements(list) one WHERE one ->> 0 = 'log'
    ) n CROSS JOIN LATERAL unnest(ARRAY[n.kind, n.value]) AS text;
    PERFORM {schema}.notices_tell_{code}(frame, told, list, queues, moments);
    RETURN told || mine;
END $$;
