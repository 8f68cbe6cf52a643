-- Create executions, unless the newest one of their entity stands in the way.
-- part: an object of birth, attach, replace (the entry that terminates an open one), inbox (entries), follows (the execution
--   before), offer as [worker, queue, ...], first (the commit of the first advance); all but the birth may be missing
-- answer: ['exists', view] or ['created', view, claim, committed]
-- tables: those of shared/lifecycle.sql, promises; with the first commit those of commit.sql
-- locks: the states of the newest executions of all entities, in the order of entity ids; an entity without one is guarded by
--   the index of open executions, also in that order, unless a worker offers itself: what it gets depends on the parts before

-- Return what the newest execution means for the creation of another (rules.way_past).
CREATE FUNCTION {schema}.create_way_past_{code}(newest {schema}.states, part jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    closed boolean := {schema}.instances_is_closed_{code}(newest.status);
BEGIN
    IF part ? 'follows' THEN
        RETURN CASE WHEN closed AND newest.execution_id = part ->> 'follows' THEN 'begin' ELSE 'leave' END;
    END IF;
    IF closed THEN RETURN CASE WHEN part ? 'attach' THEN 'leave' ELSE 'begin' END; END IF;
    RETURN CASE WHEN part ? 'replace' AND NOT part ? 'attach' THEN 'replace' ELSE 'deliver' END;
END $$;

-- Apply the first entries of an inbox.
CREATE FUNCTION {schema}.create_deliver_{code}(frame {schema}.frame_{code}, state {schema}.states, part jsonb)
RETURNS {schema}.states LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    entry jsonb;
BEGIN
    FOR entry IN SELECT * FROM jsonb_array_elements(part -> 'inbox') LOOP
        state := {schema}.lifecycle_apply_{code}(frame, state, entry);
    END LOOP;
    RETURN state;
END $$;

-- Lease an execution that was just begun to the worker that offers itself, and apply its first commit.
CREATE FUNCTION {schema}.create_claim_{code}(frame {schema}.frame_{code}, state {schema}.states, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    claim jsonb;
    committed jsonb;
BEGIN
    IF {schema}.leases_accepts_{code}(frame, state, part -> 'offer') THEN
        state := {schema}.leases_take_{code}(frame, state, part -> 'offer' ->> 0);
        claim := (
            SELECT {schema}.leases_claimed_{code}(i, state) FROM {schema}.instances i
            WHERE i.execution_id = state.execution_id
        );
    END IF;
    PERFORM {schema}.instances_save_{code}(state);
    IF claim IS NOT NULL AND part ? 'first' THEN
        committed := {schema}.commits_apply_{code}(frame, part -> 'first');
    END IF;
    RETURN jsonb_build_array('created', {schema}.instances_show_{code}(state.execution_id), claim, committed);
END $$;

CREATE FUNCTION {schema}.create_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    birth jsonb := part -> 'birth';
    newest {schema}.states;
    state {schema}.states;
    same text;
    way text;
BEGIN
    LOOP
        newest := {schema}.instances_lock_newest_{code}(birth ->> 'entity_id');
        IF newest.execution_id IS NOT NULL THEN
            SELECT i.execution_id INTO same FROM {schema}.instances i
            WHERE i.entity_id = birth ->> 'entity_id' AND i.run_id = birth ->> 'run_id'
                AND i.attempt = (birth ->> 'attempt')::bigint ORDER BY i.position LIMIT 1;
            IF FOUND THEN RETURN jsonb_build_array('created', {schema}.instances_show_{code}(same), NULL, NULL); END IF;
            way := {schema}.create_way_past_{code}(newest, part);
            IF way = 'replace' THEN
                PERFORM {schema}.instances_save_{code}(
                    {schema}.lifecycle_terminate_{code}(frame, newest, part -> 'replace'));
            ELSIF way = 'deliver' THEN
                PERFORM {schema}.instances_save_{code}({schema}.create_deliver_{code}(frame, newest, part));
            END IF;
            IF way IN ('deliver', 'leave') THEN
                RETURN jsonb_build_array('exists', {schema}.instances_show_{code}(newest.execution_id));
            END IF;
        END IF;
        state := {schema}.lifecycle_begin_{code}(frame, birth);
        EXIT WHEN state.execution_id IS NOT NULL; -- else another call has begun an execution of the entity meanwhile
    END LOOP;
    IF part ? 'follows' AND newest.execution_id IS NOT NULL THEN
        PERFORM {schema}.promises_move_{code}(newest.execution_id, state.execution_id);
    END IF;
    state := {schema}.create_deliver_{code}(frame, state, part);
    RETURN {schema}.create_claim_{code}(frame, state, part);
END $$;

CREATE FUNCTION {schema}.create_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    found jsonb[] := array_fill('null'::jsonb, ARRAY[jsonb_array_length(parts)]);
    offered CONSTANT boolean := EXISTS (SELECT FROM jsonb_array_elements(parts) p WHERE p ? 'offer');
    one record;
BEGIN
    IF jsonb_array_length(parts) > 1 THEN
        PERFORM {schema}.locks_take_{code}(
            '{}', ARRAY(SELECT p -> 'birth' ->> 'entity_id' FROM jsonb_array_elements(parts) p));
    END IF;
    FOR one IN
        SELECT p.part, p.number FROM jsonb_array_elements(parts) WITH ORDINALITY p (part, number)
        ORDER BY CASE WHEN NOT offered THEN p.part -> 'birth' ->> 'entity_id' END COLLATE "C", p.number
    LOOP
        found[one.number] := {schema}.create_part_{code}(frame, one.part);
    END LOOP;
    answers := to_jsonb(found);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
