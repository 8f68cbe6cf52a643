"""Measures the engine beside the limit of its store: twelve workloads, each in a process of its own."""
