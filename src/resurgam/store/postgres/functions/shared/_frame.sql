-- The frame of a call: its moment in milliseconds, whether that is one of a test, the length of a lease, and the open store
-- that calls.

CREATE TYPE {schema}.frame_{code} AS (now bigint, manual boolean, lease bigint, owner text);

-- Return the moment of the server's clock.
CREATE FUNCTION {schema}.frame_clock_{code}() RETURNS bigint LANGUAGE sql VOLATILE AS $$
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- Begin a call. Only tests give the moment.
CREATE FUNCTION {schema}.frame_begin_{code}(moment bigint, lease bigint, owner text)
RETURNS {schema}.frame_{code} LANGUAGE sql VOLATILE AS $$
SELECT coalesce(moment, {schema}.frame_clock_{code}()), moment IS NOT NULL, lease, owner
$$;

-- Return the last microsecond of the moment: what is offered until then can be claimed now.
CREATE FUNCTION {schema}.frame_end_{code}(frame {schema}.frame_{code})
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT (frame).now * 1000 + 999
$$;

-- Return the microsecond of what becomes ready now. What is due at this moment, a thousand times it, comes before.
CREATE FUNCTION {schema}.frame_ready_{code}(frame {schema}.frame_{code})
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT (frame).now * 1000 + 1
$$;
