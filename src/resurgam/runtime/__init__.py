"""Runs workflow code: the deterministic loop, the context, and `Execution.advance`."""
