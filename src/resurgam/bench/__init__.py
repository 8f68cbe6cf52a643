"""Measures the engine beside the limit of its store: thirteen workloads, each in a process of its own."""
