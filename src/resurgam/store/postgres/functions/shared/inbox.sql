-- Inboxes. An entry is given as [type, body, overtakes, promise id, tree]: body is a template, overtakes says whether a strict
-- commit must have seen it, tree is for pauses only.
-- An entry that wakes nobody has a number below zero: the wake counter, times 2^32, plus a number of its own. It comes behind the
-- last one that raised the counter.
-- tables: inbox, under the lock on the state of its execution

-- Put an entry into an inbox. It raises the wake counter, which is its id, and makes a free instance ready, unless that is
-- scheduled for later; one that is ready keeps its place.
CREATE FUNCTION {schema}.inbox_put_{code}(
    frame {schema}.frame_{code}, state {schema}.states, entry jsonb, holes jsonb DEFAULT NULL
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    state.wake := state.wake + 1;
    INSERT INTO {schema}.inbox (execution_id, wake, type, body, overtakes, promise_id)
    VALUES (
        state.execution_id, state.wake, entry ->> 0, {schema}.template_fill_{code}(entry -> 1, holes),
        coalesce((entry ->> 2)::boolean, false), entry ->> 3
    );
    PERFORM {schema}.notices_inbox_{code}(frame, state);
    IF state.leased_until IS NULL THEN RETURN {schema}.leases_make_ready_{code}(frame, state); END IF;
    RETURN state;
END $$;

-- Put an entry into an inbox that comes with the next one that raises the wake counter. A shared lock on the state is enough.
CREATE FUNCTION {schema}.inbox_put_quietly_{code}(id text, wake bigint, type text, body text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.inbox (execution_id, wake, type, body, overtakes)
    VALUES (id, -((wake << 32) + nextval('{schema}.turns') % 4294967296), type, body, false);
END $$;

-- Return the entries since the wake counter had a value, each as [id, body].
CREATE FUNCTION {schema}.inbox_since_{code}(id text, since bigint) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT jsonb_agg(
            jsonb_build_array(i.wake, i.body) ORDER BY CASE WHEN i.wake > 0 THEN i.wake ELSE -i.wake >> 32 END, -i.wake)
        FROM (
            SELECT e.wake, e.body FROM {schema}.inbox e WHERE e.execution_id = id AND e.wake > since
            UNION ALL
            SELECT e.wake, e.body FROM {schema}.inbox e WHERE e.execution_id = id AND e.wake <= -(since << 32)
        ) i
    ), '[]');
END $$;
