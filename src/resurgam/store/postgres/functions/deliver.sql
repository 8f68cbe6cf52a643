-- Deliver events to executions, or settle promises with them.
-- part: entry, entity id, execution id, promise id, name of a promise, schemas of signals as text, offer as
--   [worker, queue, ...]; all but the first may be null
-- answer: ['delivered', claim], ['missing'], ['ended', status], ['settled'] or ['outdated']
-- tables: those of shared/lifecycle.sql, promises; reads instances
-- locks: the states that it addresses, in the order of entity ids

-- Deliver one event to the execution that is locked, or settle a promise of it.
CREATE FUNCTION {schema}.deliver_to_{code}(
    frame {schema}.frame_{code}, state {schema}.states, promise text, entry jsonb, offer jsonb
)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    matters boolean := promise IS NOT NULL
        OR (entry ->> 0 <> 'workflow_terminated' AND {schema}.lifecycle_matters_{code}(state, entry));
    claim jsonb;
BEGIN
    IF promise IS NOT NULL THEN
        state := {schema}.promises_settle_{code}(frame, state, promise, entry);
    ELSE
        state := {schema}.lifecycle_apply_{code}(frame, state, entry);
    END IF;
    IF matters AND {schema}.leases_accepts_{code}(frame, state, offer) THEN
        state := {schema}.leases_take_{code}(frame, state, offer ->> 0);
        PERFORM {schema}.instances_save_{code}(state);
        claim := (
            SELECT {schema}.leases_claimed_{code}(i, state) FROM {schema}.instances i
            WHERE i.execution_id = state.execution_id
        );
    ELSE
        PERFORM {schema}.instances_save_{code}(state);
    END IF;
    RETURN jsonb_build_array('delivered', claim);
END $$;

CREATE FUNCTION {schema}.deliver_part_{code}(frame {schema}.frame_{code}, part jsonb)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    state {schema}.states;
    promise text := part ->> 3;
    named text := part ->> 4;
    schemas text := part ->> 5;
BEGIN
    state := CASE
        WHEN promise IS NOT NULL THEN {schema}.promises_lock_holder_{code}(promise)
        WHEN part ->> 2 IS NOT NULL THEN {schema}.instances_lock_{code}(part ->> 2)
        ELSE {schema}.instances_lock_newest_{code}(part ->> 1)
    END;
    IF state.execution_id IS NULL THEN RETURN '["missing"]'; END IF;
    IF promise IS NULL THEN
        promise := CASE WHEN named IS NOT NULL THEN {schema}.promises_named_{code}(state.execution_id, named) END;
        IF {schema}.instances_is_closed_{code}(state.status) AND promise IS NULL THEN
            RETURN jsonb_build_array('ended', state.status);
        END IF;
        IF schemas IS NOT NULL AND schemas <> (
            SELECT coalesce(i.signal_schemas, '{}') FROM {schema}.instances i WHERE i.execution_id = state.execution_id
        ) THEN
            RETURN '["outdated"]';
        END IF;
        IF named IS NOT NULL AND promise IS NULL THEN RETURN '["missing"]'; END IF;
    END IF;
    IF promise IS NOT NULL AND (
        {schema}.instances_is_closed_{code}(state.status) OR NOT {schema}.promises_is_open_{code}(promise)
    ) THEN
        RETURN '["settled"]';
    END IF;
    RETURN {schema}.deliver_to_{code}(frame, state, promise, part -> 0, part -> 6);
END $$;

CREATE FUNCTION {schema}.deliver_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    found jsonb[] := '{}';
    part jsonb;
BEGIN
    IF jsonb_array_length(parts) > 1 THEN
        PERFORM {schema}.locks_take_{code}(
            ARRAY(SELECT p ->> 2 FROM jsonb_array_elements(parts) p WHERE p ->> 2 IS NOT NULL),
            ARRAY(SELECT p ->> 1 FROM jsonb_array_elements(parts) p WHERE p ->> 2 IS NULL AND p ->> 3 IS NULL),
            ARRAY(SELECT p ->> 3 FROM jsonb_array_elements(parts) p WHERE p ->> 3 IS NOT NULL)
        );
    END IF;
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        found := array_append(found, {schema}.deliver_part_{code}(frame, part));
    END LOOP;
    answers := to_jsonb(found);
    notices := {schema}.notices_send_{code}(frame);
    RETURN NEXT;
END $$;
