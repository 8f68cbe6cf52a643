-- Effects of commits on other instances and on topics. An effect is a list of its kind and what belongs to it:
--   child, birth, entry if it exists then, entry if its id is taken
--   message, entity id, run id, parent key, promise id, entry, and the answers delivered, missing, ended
--   publish, topic, value
-- tables: those of lifecycle.sql, inbox.sql, promises.sql; reads answers; locks the states that it addresses, and topics last

-- Start a child, unless it ran for this request before or its id is taken; return the entries for its parent. taken: its id
-- is that of an instance which goes on in a successor, begun afterwards.
CREATE FUNCTION {schema}.effects_start_child_{code}(
    frame {schema}.frame_{code}, effect jsonb, paused text, taken boolean
)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    birth jsonb := effect -> 1;
    created jsonb := effect -> 2;
    entity text := birth ->> 'entity_id';
    child text;
    last text;
    newest record;
    answers jsonb;
BEGIN
    LOOP
        SELECT (array_agg(i.execution_id ORDER BY i.position))[1], (array_agg(i.execution_id ORDER BY i.position DESC))[1]
        INTO child, last FROM {schema}.instances i WHERE i.entity_id = entity AND i.first_run = birth ->> 'run_id';
        EXIT WHEN child IS NOT NULL;
        SELECT i.execution_id, i.parent_key, i.closed_at INTO newest
        FROM {schema}.instances i WHERE i.entity_id = entity ORDER BY i.position DESC LIMIT 1;
        IF FOUND AND (taken OR newest.closed_at IS NULL) THEN
            IF newest.parent_key IS DISTINCT FROM birth ->> 'parent_key' THEN RETURN jsonb_build_array(effect -> 3); END IF;
            child := newest.execution_id;
        ELSE
            child := ({schema}.lifecycle_begin_{code}(frame, birth, paused)).execution_id;
        END IF;
        EXIT WHEN child IS NOT NULL; -- else another call has begun an execution of the entity meanwhile
    END LOOP;
    answers := jsonb_build_array(jsonb_set(
        created, '{1}', to_jsonb({schema}.template_fill_{code}(created -> 1, jsonb_build_object('execution_id', child)))
    ));
    RETURN answers || coalesce((
        SELECT jsonb_build_array(jsonb_build_array(a.type, a.body, true)) FROM {schema}.answers a WHERE a.execution_id = last
    ), '[]');
END $$;

-- Send the effects of a commit, and put the answers into the inbox of its instance. paused is how the instance was before.
CREATE FUNCTION {schema}.effects_send_{code}(
    frame {schema}.frame_{code}, state {schema}.states, effects jsonb, paused text, succeeded boolean
)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    effect jsonb;
    answer jsonb;
    target {schema}.states;
    promise text;
BEGIN
    FOR effect IN SELECT * FROM jsonb_array_elements(effects) LOOP
        CASE effect ->> 0
        WHEN 'child' THEN
            FOR answer IN SELECT * FROM jsonb_array_elements({schema}.effects_start_child_{code}(
                frame, effect, CASE WHEN paused = 'tree' THEN 'tree' END,
                succeeded AND effect -> 1 ->> 'entity_id' = state.entity_id))
            LOOP
                state := {schema}.inbox_put_{code}(frame, state, answer);
            END LOOP;
        WHEN 'message' THEN
            promise := effect ->> 4;
            IF promise IS NOT NULL THEN
                target := CASE WHEN {schema}.promises_holder_{code}(promise) = state.execution_id THEN state
                    ELSE {schema}.promises_lock_holder_{code}(promise) END;
            ELSE
                target := CASE WHEN {schema}.instances_newest_{code}(effect ->> 1) = state.execution_id THEN state
                    ELSE {schema}.instances_lock_newest_{code}(effect ->> 1) END;
            END IF;
            IF target.execution_id IS NULL THEN
                answer := effect -> 7;
            ELSIF NOT {schema}.effects_reaches_{code}(state.execution_id, target, effect) THEN
                answer := effect -> 8;
            ELSE
                answer := effect -> 6;
                IF promise IS NOT NULL THEN
                    target := {schema}.promises_settle_{code}(frame, target, promise, effect -> 5);
                ELSE
                    target := {schema}.lifecycle_apply_{code}(frame, target, effect -> 5);
                END IF;
                IF target.execution_id = state.execution_id THEN
                    state := target;
                ELSE
                    PERFORM {schema}.instances_save_{code}(target);
                END IF;
            END IF;
            IF jsonb_typeof(answer) = 'array' THEN state := {schema}.inbox_put_{code}(frame, state, answer); END IF;
        WHEN 'publish' THEN
            PERFORM {schema}.topics_publish_{code}(frame, effect ->> 1, effect ->> 2);
        END CASE;
    END LOOP;
    RETURN state;
END $$;

-- Whether a message counts for the execution that it has found. A commit that closes an execution may still settle its
-- promises: the next attempt takes them over.
CREATE FUNCTION {schema}.effects_reaches_{code}(sender text, target {schema}.states, effect jsonb)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    closed boolean := {schema}.instances_is_closed_{code}(target.status);
BEGIN
    IF effect ->> 4 IS NOT NULL THEN
        RETURN (NOT closed OR target.execution_id = sender) AND {schema}.promises_is_open_{code}(effect ->> 4);
    END IF;
    IF closed THEN RETURN false; END IF;
    IF effect ->> 2 IS NULL AND effect ->> 3 IS NULL THEN RETURN true; END IF;
    RETURN (
        SELECT (effect ->> 2 IS NULL OR effect ->> 2 = i.run_id)
            AND (effect ->> 3 IS NULL OR coalesce(effect ->> 3 = i.parent_key, false))
        FROM {schema}.instances i WHERE i.execution_id = target.execution_id
    );
END $$;

-- Begin the next execution of an entity, with its first entries and the unread ones of the execution before.
-- succession: birth, first entries, types of the entries that move
CREATE FUNCTION {schema}.effects_begin_successor_{code}(
    frame {schema}.frame_{code}, state {schema}.states, succession jsonb, paused text
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    successor {schema}.states := {schema}.lifecycle_begin_{code}(frame, succession -> 0, paused);
    entry jsonb;
    moved record;
BEGIN
    IF successor.execution_id IS NULL THEN
        RAISE EXCEPTION 'entity % has another open execution', state.entity_id;
    END IF;
    FOR entry IN SELECT * FROM jsonb_array_elements(succession -> 1) LOOP
        successor := {schema}.lifecycle_hand_on_{code}(frame, successor, entry);
    END LOOP;
    FOR moved IN
        SELECT i.wake, jsonb_build_array(i.type, i.body, i.overtakes, i.promise_id) AS entry FROM {schema}.inbox i
        WHERE i.execution_id = state.execution_id AND succession -> 2 ? i.type ORDER BY i.wake
    LOOP
        DELETE FROM {schema}.inbox i WHERE i.execution_id = state.execution_id AND i.wake = moved.wake;
        successor := {schema}.lifecycle_hand_on_{code}(frame, successor, moved.entry);
    END LOOP;
    IF successor.wake > 0 THEN PERFORM {schema}.instances_save_{code}(successor); END IF;
    PERFORM {schema}.promises_move_{code}(state.execution_id, successor.execution_id);
END $$;
