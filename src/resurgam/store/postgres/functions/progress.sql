-- Return how far executions have come.
-- part: execution id
-- answer: last_seq, wake, status; null if there is none
-- tables: reads states
-- locks: none

CREATE FUNCTION {schema}.progress_{code}(
    moment bigint, lease bigint, owner text, parts jsonb, OUT notices text[], OUT answers jsonb
)
RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
BEGIN
    answers := (
        SELECT jsonb_agg(
            CASE WHEN s.execution_id IS NOT NULL THEN jsonb_build_array(s.last_seq, s.wake, s.status) END ORDER BY p.number)
        FROM jsonb_array_elements_text(parts) WITH ORDINALITY AS p (id, number)
        LEFT JOIN {schema}.states s ON s.execution_id = p.id
    );
    RETURN NEXT;
END $$;
