"""Measures the engine beside the limit of its store: eight workloads, each in a process of its own."""
