"""Deliver a history to the code that wrote it, one entry at a time."""
