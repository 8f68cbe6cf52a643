"""Measures the engine beside the limit of its store: fourteen workloads, each in a process of its own."""
