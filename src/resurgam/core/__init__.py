"""The pure heart: places, events, matching and folding. No clock, no I/O, no async."""
