"""The engine from end to end, on every store."""
