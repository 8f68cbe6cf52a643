-- End the leases of owners that are dead, and remove their workers.
-- part: owner
-- answer: how many leases have ended
-- tables: states, activities, workers, announced
-- locks: the states in the order of entity ids, also those of leased activities, then the activities

CREATE FUNCTION {schema}.reap_part_{code}(frame {schema}.frame_{code}, dead text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ended record;
    count bigint := 0;
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(
        SELECT s.execution_id FROM {schema}.states s WHERE s.owner = dead
        UNION SELECT a.execution_id FROM {schema}.activities a WHERE a.owner = dead
    ));
    FOR ended IN
        WITH instances AS (
            UPDATE {schema}.states s SET leased_until = frame.now WHERE s.owner = dead AND s.leased_until > frame.now
            RETURNING s.queue
        ), activities AS (
            UPDATE {schema}.activities a SET leased_until = frame.now WHERE a.owner = dead AND a.leased_until > frame.now
            RETURNING a.queue
        )
        SELECT n.queue, count(*) AS leases
        FROM (SELECT queue FROM instances UNION ALL SELECT queue FROM activities) n GROUP BY n.queue
    LOOP
        count := count + ended.leases;
        PERFORM {schema}.notices_work_{code}(ended.queue);
    END LOOP;
    DELETE FROM {schema}.workers w WHERE w.owner = dead;
    RETURN count;
END $$;

CREATE FUNCTION {schema}.reap_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    list jsonb[] := '{}';
BEGIN
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        list := array_append(list, to_jsonb({schema}.reap_part_{code}(frame, part #>> '{}')));
    END LOOP;
    answers := to_jsonb(list);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
