-- Delete everything but the rows of complete executions of an entity, unless one of them has changed.
-- part: entity id; executions, oldest first: id and version (shared/transfer.sql); the URL of the file that has them
-- answer: whether they were deleted
-- tables: those of purge.sql
-- locks: the states in the order of entity ids, then the rest

-- Keep of an execution its row, with the archive, and a state that no worker holds or is offered.
CREATE FUNCTION {schema}.archive_shorten_{code}(frame {schema}.frame_{code}, id text, url text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.purge_empty_{code}(id);
    DELETE FROM {schema}.events e WHERE e.execution_id = id;
    UPDATE {schema}.instances i SET archived = url WHERE i.execution_id = id;
    UPDATE {schema}.states s SET
        epoch = s.epoch + 1, commits = s.commits + 1, ready_at = NULL, owner = NULL, worker = NULL, claim = NULL,
        leased_until = NULL, covered = NULL, deliveries = 0, last_failure = ''
    WHERE s.execution_id = id;
    PERFORM {schema}.notices_log_{code}(frame, id);
END $$;

CREATE FUNCTION {schema}.archive_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT {schema}.transfer_is_unchanged_{code}(part ->> 0, part -> 1) OR EXISTS (
        SELECT FROM jsonb_array_elements(part -> 1) one
        JOIN {schema}.instances i ON i.execution_id = one ->> 0 WHERE NOT i.deactivated OR i.archived IS NOT NULL
    ) THEN
        RETURN false;
    END IF;
    PERFORM {schema}.archive_shorten_{code}(frame, one ->> 0, part ->> 2) FROM jsonb_array_elements(part -> 1) one;
    RETURN true;
END $$;

CREATE FUNCTION {schema}.archive_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
BEGIN
    PERFORM {schema}.locks_take_{code}(ARRAY(
        SELECT named ->> 0 FROM jsonb_array_elements(parts) one, jsonb_array_elements(one -> 1) named));
    answers := '[]';
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        answers := answers || to_jsonb({schema}.archive_part_{code}(frame, part));
    END LOOP;
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
