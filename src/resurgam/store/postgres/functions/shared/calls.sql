-- The answer to the last call on each connection, kept in the transaction of the call. If the connection is lost before the
-- answer has arrived, it is read here.
-- tables: calls, the row of one connection, after all others

CREATE FUNCTION {schema}.calls_keep_{code}(
    owner text, connection integer, number bigint, notices text[], answers jsonb
)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.calls c
    SET number = calls_keep_{code}.number, notices = calls_keep_{code}.notices, answers = calls_keep_{code}.answers,
        called_at = now()
    WHERE c.owner = calls_keep_{code}.owner AND c.connection = calls_keep_{code}.connection
        AND c.number < calls_keep_{code}.number;
    IF NOT FOUND THEN
        -- The first call on this connection, or one that was given up: then the row is there, and nothing of the call counts.
        INSERT INTO {schema}.calls (owner, connection, number, notices, answers)
        VALUES (owner, connection, number, notices, answers);
    END IF;
END $$;

-- Return the answer to a call whose connection was lost. If there is none, the call was not done, and never will be.
CREATE FUNCTION {schema}.calls_find_{code}(owner text, connection integer, number bigint)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found {schema}.calls;
BEGIN
    INSERT INTO {schema}.calls (owner, connection, number)
    VALUES (owner, connection, number)
    ON CONFLICT DO NOTHING;  -- waits for the end of the lost transaction, if that has come so far
    SELECT * INTO STRICT found FROM {schema}.calls c
    WHERE c.owner = calls_find_{code}.owner AND c.connection = calls_find_{code}.connection FOR UPDATE;
    IF found.number < calls_find_{code}.number THEN
        UPDATE {schema}.calls c SET number = calls_find_{code}.number, notices = NULL, answers = NULL
        WHERE c.owner = found.owner AND c.connection = found.connection;
    ELSIF found.answers IS NOT NULL THEN
        RETURN QUERY SELECT found.notices, found.answers;
    END IF;
END $$;

-- Delete the kept answers of all connections: they may hold values of an entity that was deleted. A call that looks for its
-- answer afterwards finds JSON's null: it was done, and its answer is gone.
CREATE FUNCTION {schema}.calls_scrub_{code}()
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.calls c SET notices = '{}', answers = 'null'
    FROM (
        -- In one order, so that two that scrub do not stop each other. All others hold only their own row, and last.
        SELECT k.owner, k.connection FROM {schema}.calls k WHERE k.answers <> 'null'
        ORDER BY k.owner, k.connection FOR UPDATE
    ) AS kept
    WHERE c.owner = kept.owner AND c.connection = kept.connection;
END $$;

-- Forget the calls of an open store that is closed, and of all that have not called for a day.
CREATE FUNCTION {schema}.calls_forget_{code}(owner text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.calls c WHERE c.owner = calls_forget_{code}.owner OR c.called_at < now() - interval '1 day';
END $$;
