"""Measures the engine beside the limit of its store: seven workloads, each in a process of its own."""
