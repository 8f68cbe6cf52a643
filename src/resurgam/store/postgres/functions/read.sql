-- Return logs, without what is forgotten of them.
-- part: entity id, execution id, seq after which to read
-- answer: [[seq, body], ...], in order
-- tables: reads events, states
-- locks: none

CREATE FUNCTION {schema}.read_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
BEGIN
    notices := '{}';
    SELECT jsonb_agg(coalesce((
        SELECT jsonb_agg(jsonb_build_array(e.seq, e.body) ORDER BY e.seq)
        FROM {schema}.events e JOIN {schema}.states s ON s.execution_id = e.execution_id
        WHERE e.execution_id = p.part ->> 1 AND s.entity_id = p.part ->> 0 AND e.seq > (p.part ->> 2)::bigint
            AND e.forgotten IS NULL
    ), '[]') ORDER BY p.number) INTO answers
    FROM jsonb_array_elements(parts) WITH ORDINALITY p (part, number);
    RETURN NEXT;
END $$;
