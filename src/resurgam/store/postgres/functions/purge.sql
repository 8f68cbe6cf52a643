-- Delete closed executions, with all that belongs to them.
-- part: entity id, execution id
-- answer: 'purged', 'missing', or the status of an open execution
-- tables: all that have an execution: instances, instance_tags, states, events, inbox, activities, promises, answers, tried,
--   queries
-- locks: the states in the order of entity ids, then the rest

-- Delete everything of an execution, open or closed.
CREATE FUNCTION {schema}.purge_delete_{code}(frame {schema}.frame_{code}, id text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    query text;
BEGIN
    DELETE FROM {schema}.activities a WHERE a.execution_id = id;
    DELETE FROM {schema}.inbox n WHERE n.execution_id = id;
    DELETE FROM {schema}.promises p WHERE p.execution_id = id;
    DELETE FROM {schema}.answers a WHERE a.execution_id = id;
    DELETE FROM {schema}.tried t WHERE t.execution_id = id;
    FOR query IN DELETE FROM {schema}.queries q WHERE q.execution_id = id RETURNING q.query_id LOOP
        PERFORM {schema}.notices_note_{code}('query', query);
    END LOOP;
    DELETE FROM {schema}.events e WHERE e.execution_id = id;
    DELETE FROM {schema}.instance_tags t WHERE t.execution_id = id;
    DELETE FROM {schema}.instances i WHERE i.execution_id = id;
    DELETE FROM {schema}.states s WHERE s.execution_id = id;
    PERFORM {schema}.notices_closed_{code}(frame, id);
    PERFORM {schema}.notices_log_{code}(frame, id);
END $$;

CREATE FUNCTION {schema}.purge_part_{code}(frame {schema}.frame_{code}, entity text, id text)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    shown text;
BEGIN
    SELECT i.status INTO shown FROM {schema}.instances i WHERE i.execution_id = id AND i.entity_id = entity;
    IF NOT FOUND THEN RETURN 'missing'; END IF;
    IF NOT {schema}.instances_is_closed_{code}(shown) THEN RETURN shown; END IF;
    PERFORM {schema}.purge_delete_{code}(frame, id);
    RETURN 'purged';
END $$;

CREATE FUNCTION {schema}.purge_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(SELECT one ->> 1 FROM jsonb_array_elements(parts) one));
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        list := array_append(list, to_jsonb({schema}.purge_part_{code}(frame, part ->> 0, part ->> 1)));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
