-- The frame of a call: its moment in milliseconds, whether that is one of a test, the length of a lease, and the open store
-- that calls.

CREATE TYPE {schema}.frame_{code} AS (now bigint, manual boolean, lease bigint, owner text);

-- Return the moment of the server's clock.
CREATE FUNCTION {schema}.frame_clock_{code}() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
END $$;

-- Begin a call. Only tests give the moment.
CREATE FUNCTION {schema}.frame_begin_{code}(moment bigint, lease bigint, owner text)
RETURNS {schema}.frame_{code} LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frame {schema}.frame_{code};
BEGIN
    frame.now := coalesce(moment, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    frame.manual := moment IS NOT NULL;
    frame.lease := lease;
    frame.owner := owner;
    RETURN frame;
END $$;

-- Return the last microsecond of the moment: what is offered until then can be claimed now.
CREATE FUNCTION {schema}.frame_end_{code}(frame {schema}.frame_{code})
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN frame.now * 1000 + 999;
END $$;

-- Return since when something is ready that becomes so now: a microsecond, less 2^60. So it precedes every moment, and stays
-- ready if the clock is set back.
CREATE FUNCTION {schema}.frame_ready_{code}(frame {schema}.frame_{code})
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN frame.now * 1000 + 1 - 1152921504606846976;
END $$;
