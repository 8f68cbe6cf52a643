-- Messages on topics. Their numbers come from one sequence for all topics: cursors, which are numbers, stay valid when a topic
-- without recent messages is deleted.
-- tables: topics, messages. Whoever publishes holds the row of the topic until its commit, and takes the number after that lock:
-- the messages of a topic are committed in the order of their numbers.

-- Keep a message, and delete some that are too old.
CREATE FUNCTION {schema}.topics_publish_{code}(frame {schema}.frame_{code}, name text, message text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    kept CONSTANT bigint := 60000;  -- milliseconds (rules.MESSAGES_KEPT)
    at_once CONSTANT bigint := 100;  -- messages that one call deletes at most, so that it stays short
    next_number bigint;
BEGIN
    INSERT INTO {schema}.topics AS t (topic, number) VALUES (name, nextval('{schema}.turns'))
    ON CONFLICT (topic) DO UPDATE SET number = nextval('{schema}.turns') RETURNING t.number INTO next_number;
    INSERT INTO {schema}.messages (topic, number, at, body) VALUES (name, next_number, frame.now, message);
    WITH old AS (
        DELETE FROM {schema}.messages m USING (
            SELECT x.topic, x.number FROM {schema}.messages x WHERE x.at < frame.now - kept
            ORDER BY x.at LIMIT at_once FOR UPDATE SKIP LOCKED) AS x
        WHERE m.topic = x.topic AND m.number = x.number RETURNING m.topic
    )
    DELETE FROM {schema}.topics t WHERE t.topic IN (
        SELECT silent.topic FROM {schema}.topics silent
        WHERE silent.topic IN (SELECT old.topic FROM old) AND silent.topic <> name
          AND NOT EXISTS (SELECT 1 FROM {schema}.messages m WHERE m.topic = silent.topic AND m.at >= frame.now - kept)
        FOR UPDATE SKIP LOCKED);
    PERFORM {schema}.notices_note_{code}('topic', name);
END $$;
