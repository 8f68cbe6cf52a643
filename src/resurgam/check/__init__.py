"""Knowing before deploying: whether the code on disk fits the runs that are open. Nothing is written."""
