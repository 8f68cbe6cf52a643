-- Delete closed executions, with all that belongs to them.
-- part: entity id, execution id
-- most: of the events that one call deletes; a log that is longer, and what comes behind it, needs further calls
-- answer: 'purged', 'missing', 'more' if another call is needed, or the status of an open execution
-- tables: all that have an execution: instances, instance_tags, states, events, inbox, activities, promises, answers, tried,
--   queries
-- locks: the states in the order of entity ids, then the rest

-- Delete everything of an execution but its rows, its log and its kept answer.
CREATE FUNCTION {schema}.purge_empty_{code}(id text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    query text;
BEGIN
    DELETE FROM {schema}.activities a WHERE a.execution_id = id;
    DELETE FROM {schema}.inbox n WHERE n.execution_id = id;
    DELETE FROM {schema}.promises p WHERE p.execution_id = id;
    DELETE FROM {schema}.tried t WHERE t.execution_id = id;
    FOR query IN DELETE FROM {schema}.queries q WHERE q.execution_id = id RETURNING q.query_id LOOP
        PERFORM {schema}.notices_note_{code}('query', query);
    END LOOP;
END $$;

-- Delete everything of an execution, open or closed.
CREATE FUNCTION {schema}.purge_delete_{code}(frame {schema}.frame_{code}, id text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.purge_empty_{code}(id);
    DELETE FROM {schema}.events e WHERE e.execution_id = id;
    DELETE FROM {schema}.answers a WHERE a.execution_id = id;
    DELETE FROM {schema}.instance_tags t WHERE t.execution_id = id;
    DELETE FROM {schema}.instances i WHERE i.execution_id = id;
    DELETE FROM {schema}.states s WHERE s.execution_id = id;
    PERFORM {schema}.notices_closed_{code}(frame, id);
    PERFORM {schema}.notices_log_{code}(frame, id);
END $$;

-- Delete the oldest events of an execution; return how many. Nobody claims it any longer, as its log is not whole, but it is
-- listed, with the entry that closed it, until the rest is deleted: should that never happen, it can be purged again.
CREATE FUNCTION {schema}.purge_shorten_{code}(frame {schema}.frame_{code}, id text, most bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states := {schema}.instances_lock_{code}(id);
    deleted bigint;
BEGIN
    PERFORM {schema}.purge_empty_{code}(id);
    state.wake_at := NULL;
    state.covered := NULL;
    state.epoch := state.epoch + 1;
    PERFORM {schema}.instances_save_{code}({schema}.leases_free_{code}(frame, state, false));
    DELETE FROM {schema}.events e WHERE e.execution_id = id AND e.seq < (
        SELECT l.seq FROM {schema}.events l WHERE l.execution_id = id ORDER BY l.seq OFFSET most LIMIT 1);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;

-- Purge an execution, if *room* is left for its log in this call, which has room for *most* events. A log that no call has room
-- for is shortened. Return how many events were deleted.
CREATE FUNCTION {schema}.purge_part_{code}(
    frame {schema}.frame_{code}, entity text, id text, room bigint, most bigint, OUT deleted bigint, OUT answer text
)
RETURNS record LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    deleted := 0;
    SELECT i.status INTO answer FROM {schema}.instances i WHERE i.execution_id = id AND i.entity_id = entity;
    IF NOT FOUND THEN
        answer := 'missing';
    ELSIF {schema}.instances_is_closed_{code}(answer) THEN
        SELECT count(*) INTO deleted FROM (
            SELECT FROM {schema}.events e WHERE e.execution_id = id ORDER BY e.seq LIMIT room + 1) e;
        IF deleted <= room THEN
            answer := 'purged';
            PERFORM {schema}.purge_delete_{code}(frame, id);
        ELSE
            answer := 'more';
            deleted := CASE WHEN room = most THEN {schema}.purge_shorten_{code}(frame, id, most) ELSE 0 END;
        END IF;
    END IF;
END $$;

CREATE FUNCTION {schema}.purge_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, most bigint, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    room bigint := most;
    done record;
    list jsonb[] := '{}';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        done := {schema}.purge_part_{code}(frame, part ->> 0, part ->> 1, room, most);
        room := room - done.deleted;
        list := array_append(list, to_jsonb(done.answer));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
