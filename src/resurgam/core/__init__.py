"""The pure core: locations, events, matching and folding. No clock, no I/O, no async."""
