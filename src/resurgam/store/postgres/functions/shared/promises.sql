-- Promises: opened by commits, settled once. Each belongs to one execution.
-- tables: promises, under the lock on the state of the execution that holds them

-- Open promises, given as [[promise id, name, schema], ...], or open them again for a later attempt, unless their settlement
-- waits in the inbox. One that the execution has already keeps its place.
CREATE FUNCTION {schema}.promises_open_{code}(state {schema}.states, opened jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.promises AS p (promise_id, entity_id, execution_id, name, schema)
    SELECT o.one ->> 0, state.entity_id, state.execution_id, o.one ->> 1, o.one ->> 2
    FROM jsonb_array_elements(opened) WITH ORDINALITY o (one, number) ORDER BY o.number
    ON CONFLICT (promise_id) DO UPDATE SET
        position = CASE WHEN p.execution_id = excluded.execution_id THEN p.position ELSE excluded.position END,
        settled = p.execution_id = excluded.execution_id AND EXISTS (
            SELECT FROM {schema}.inbox i WHERE i.execution_id = p.execution_id AND i.promise_id = p.promise_id
        ),
        execution_id = excluded.execution_id, entity_id = excluded.entity_id, name = excluded.name,
        schema = excluded.schema;
END $$;

-- Mark promises of an execution as settled, and delete the oldest of those that are.
CREATE FUNCTION {schema}.promises_close_{code}(id text, ids text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.promises p SET settled = true WHERE p.promise_id = ANY (ids) AND p.execution_id = id;
    DELETE FROM {schema}.promises p WHERE p.promise_id IN (
        SELECT old.promise_id FROM {schema}.promises old WHERE old.execution_id = id AND old.settled
        ORDER BY old.position DESC OFFSET 1000  -- rules.PROMISES_KEPT
    );
END $$;

-- Return the execution that holds a promise; NULL if there is none.
CREATE FUNCTION {schema}.promises_holder_{code}(promise text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT p.execution_id FROM {schema}.promises p WHERE p.promise_id = promise);
END $$;

-- Lock the state of the execution that holds a promise and return it; a row of NULLs if there is none.
CREATE FUNCTION {schema}.promises_lock_holder_{code}(promise text)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    id text := {schema}.promises_holder_{code}(promise);
    holder text;
BEGIN
    LOOP
        IF id IS NULL THEN RETURN NULL; END IF;
        SELECT * INTO state FROM {schema}.states s WHERE s.execution_id = id FOR UPDATE;
        -- Who held the lock may have given it to the next attempt.
        holder := {schema}.promises_holder_{code}(promise);
        IF holder = id THEN RETURN state; END IF;
        id := holder;
    END LOOP;
END $$;

-- Whether a promise can still be settled.
CREATE FUNCTION {schema}.promises_is_open_{code}(promise text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.promises p WHERE p.promise_id = promise AND NOT p.settled);
END $$;

-- Settle a promise that is open with an entry for the inbox of the execution that holds it.
CREATE FUNCTION {schema}.promises_settle_{code}(
    frame {schema}.frame_{code}, state {schema}.states, promise text, entry jsonb
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.promises_close_{code}(state.execution_id, ARRAY[promise]);
    RETURN {schema}.inbox_put_{code}(
        frame, state, jsonb_set(entry, '{3}', to_jsonb(promise)), jsonb_build_object('promise_id', promise));
END $$;

-- Return the oldest open promise of a name; if none is open, the oldest.
CREATE FUNCTION {schema}.promises_named_{code}(id text, wanted text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT p.promise_id FROM {schema}.promises p WHERE p.execution_id = id AND p.name = wanted
        ORDER BY p.settled, p.position LIMIT 1
    );
END $$;

-- Give the promises of a closed execution to the next attempt of its run.
CREATE FUNCTION {schema}.promises_move_{code}(closed text, successor text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.promises p SET execution_id = successor
    WHERE p.execution_id = closed AND (
        SELECT count(DISTINCT i.run_id) = 1 FROM {schema}.instances i WHERE i.execution_id IN (closed, successor)
    );
END $$;
