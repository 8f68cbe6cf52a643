-- Locks: a verb takes those of all executions that it changes before it changes one, in the order of their entity ids. An
-- execution that was begun meanwhile, by the call that held the lock before, is locked when it is found.
-- tables: reads instances, promises; locks states, in the order of entity ids

-- Lock executions: by their ids, the newest ones of entities, and the holders of promises.
CREATE FUNCTION {schema}.locks_take_{code}(executions text[], entities text[] DEFAULT '{}', promises text[] DEFAULT '{}')
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(entities) = 0 AND cardinality(promises) = 0 THEN
        PERFORM FROM {schema}.states s WHERE s.execution_id = ANY (executions)
        ORDER BY s.entity_id, s.execution_id FOR UPDATE;
        RETURN;
    END IF;
    PERFORM FROM {schema}.states s WHERE s.execution_id IN (
        SELECT unnest(executions)
        UNION SELECT {schema}.instances_newest_{code}(entity) FROM unnest(entities) entity
        UNION SELECT p.execution_id FROM {schema}.promises p WHERE p.promise_id = ANY (promises)
    ) ORDER BY s.entity_id, s.execution_id FOR UPDATE;
END $$;
