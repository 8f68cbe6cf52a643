-- Logs, what is forgotten of them, and their place in the feed.
-- tables: events, under the lock on the state of their execution

-- Return the key of this transaction in the feed. The events of an execution get the greatest of it and the one in its state,
-- because a transaction may get its id before the lock.
CREATE FUNCTION {schema}.log_key_{code}() RETURNS bigint LANGUAGE sql VOLATILE AS $$
SELECT pg_current_xact_id()::text::bigint + {schema}.feed_offset()
$$;

-- Append events, given as [[type, body], ...].
CREATE FUNCTION {schema}.log_append_{code}(frame {schema}.frame_{code}, state {schema}.states, entries jsonb)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state.feed_key := greatest(state.feed_key, {schema}.log_key_{code}());
    INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
    SELECT state.execution_id, state.last_seq + e.number, state.feed_key, e.entry ->> 0, e.entry ->> 1
    FROM jsonb_array_elements(entries) WITH ORDINALITY e (entry, number) ORDER BY e.number;
    state.last_seq := state.last_seq + jsonb_array_length(entries);
    PERFORM {schema}.notices_log_{code}(frame, state.execution_id);
    RETURN state;
END $$;

-- Append events to the logs of several executions, *counts* for each. Those with the numbers *done* may be extended; *keys* are
-- their places in the feed. Each event comes with the id of its execution and its seq. Nearly always all are done, and nothing
-- was committed between the transaction's id and its locks: then nothing need be looked up.
CREATE FUNCTION {schema}.log_extend_{code}(
    key bigint, done bigint[], keys bigint[], counts bigint[], ids text[], seqs bigint[], types text[], bodies text[]
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(done) = cardinality(counts) AND key = ALL (keys) THEN
        INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
        SELECT e.id, e.seq, key, e.type, e.body
        FROM unnest(ids, seqs, types, bodies) e (id, seq, type, body);
    ELSIF done IS NOT NULL THEN
        INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
        SELECT ids[place], seqs[place], d.key, types[place], bodies[place]
        FROM (
            SELECT u.number, u.count, sum(u.count) OVER (ORDER BY u.number)::int AS last
            FROM unnest(counts) WITH ORDINALITY u (count, number)
        ) p
        JOIN unnest(done, keys) d (number, key) ON d.number = p.number
        CROSS JOIN LATERAL generate_series(p.last - p.count::int + 1, p.last) place
        ORDER BY place;
    END IF;
END $$;

-- Return the moment of an entry, 0 if it is not there. The encoder writes it behind the type and the seq.
CREATE FUNCTION {schema}.log_moment_{code}(id text, seq bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT substring(e.body FROM '^\{"type":"\w+","seq":\d+,"at":(\d+)')::bigint
        FROM {schema}.events e WHERE e.execution_id = id AND e.seq = log_moment_{code}.seq
    ), 0);
END $$;

-- Keep entries, given as [[seq, location in hexadecimal], ...], where only tools look; the last location of one counts.
CREATE FUNCTION {schema}.log_forget_{code}(id text, marks jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.events e SET forgotten = decode(n.location, 'hex')
    FROM (
        SELECT DISTINCT ON (1) (m.mark ->> 0)::bigint AS seq, m.mark ->> 1 AS location
        FROM jsonb_array_elements(marks) WITH ORDINALITY m (mark, number) ORDER BY 1, m.number DESC
    ) n
    WHERE e.execution_id = id AND e.seq = n.seq;
END $$;

-- Delete what is forgotten within spans, given as [[first location, the one behind the last], ...].
CREATE FUNCTION {schema}.log_drop_{code}(id text, spans jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.events e USING jsonb_array_elements(spans) span
    WHERE e.execution_id = id AND e.forgotten >= decode(span ->> 0, 'hex') AND e.forgotten < decode(span ->> 1, 'hex');
END $$;

-- Return the moment of the last entry that is kept, 0 if there is none.
CREATE FUNCTION {schema}.log_last_moment_{code}(id text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce({schema}.log_moment_{code}(id, (SELECT max(e.seq) FROM {schema}.events e WHERE e.execution_id = id)), 0);
END $$;
