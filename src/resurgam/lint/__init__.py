"""Finds what cannot be replayed in workflow code, by reading its source. Nothing is imported and nothing is run."""
