-- Activities that the lease on their instance covers need no row.

ALTER TABLE instances ADD COLUMN covered TEXT;  -- the requests of the running ones, as a JSON array; NULL: none, or no lease
