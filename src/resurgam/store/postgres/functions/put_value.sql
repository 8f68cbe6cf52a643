-- Store a value, unless one is there that is not to be replaced; the answer is the value that is there now, in hex.
-- part: key, value in hex, moment at which it expires or null, whether it replaces one that is there
-- tables: stored_values
-- locks: the rows in the order of their keys, then a few that have expired, with SKIP LOCKED

CREATE FUNCTION {schema}.put_value_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code} := {schema}.frame_begin_{code}(moment, lease, owner);
    part jsonb;
    stored bytea;
    number bigint;
    replies text[] := array_fill(NULL::text, ARRAY[jsonb_array_length(parts)]);
BEGIN
    FOR part, number IN SELECT * FROM jsonb_array_elements(parts) WITH ORDINALITY AS p (one, n)
                        ORDER BY (one ->> 0) COLLATE "C", n LOOP
        INSERT INTO {schema}.stored_values AS v (key, value, expires_at)
        VALUES (part ->> 0, decode(part ->> 1, 'hex'), (part ->> 2)::bigint)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
        WHERE (part ->> 3)::boolean OR v.expires_at <= frame.now
        RETURNING v.value INTO stored;
        IF NOT FOUND THEN  -- the conflict has locked the row, so it is there
            SELECT v.value INTO stored FROM {schema}.stored_values v WHERE v.key = part ->> 0;
        END IF;
        replies[number] := encode(stored, 'hex');
    END LOOP;
    DELETE FROM {schema}.stored_values v WHERE v.key IN (
        SELECT x.key FROM {schema}.stored_values x WHERE x.expires_at <= frame.now
        ORDER BY x.expires_at LIMIT 100 FOR UPDATE SKIP LOCKED);
    RETURN QUERY SELECT '{}'::text[], to_jsonb(replies);
END $$;
