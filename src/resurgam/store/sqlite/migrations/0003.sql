-- A start and a step write a page less.
--
-- The positions of instances and events follow the greatest one in their table. Files that were made before this version
-- have AUTOINCREMENT there, which does the same at the price of that page, and copying a large file would cost more. The
-- position of an event must not be reused, because the cursors of feeds are positions. So when the newest event of all is
-- deleted, an empty one that belongs to no execution keeps its position. It is a JSON object too: a query may read the
-- bodies of events before it knows to which execution they belong.

CREATE TRIGGER events_newest AFTER DELETE ON events
WHEN old.position > (SELECT coalesce(max(position), 0) FROM events)
BEGIN
    INSERT INTO events (position, execution_id, seq, body) VALUES (old.position, '', old.position, '{}');
    DELETE FROM events WHERE execution_id = '' AND position < old.position;
END;

INSERT INTO events (position, execution_id, seq, body)
SELECT seq, '', seq, '{}' FROM sqlite_sequence
WHERE name = 'events' AND seq > (SELECT coalesce(max(position), 0) FROM events);

DROP INDEX instances_first_run;
CREATE INDEX instances_first_run ON instances (entity_id, first_run, position) WHERE parent_id IS NOT NULL;
