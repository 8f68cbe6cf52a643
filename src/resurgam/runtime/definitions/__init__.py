"""Decorators, the registry, signatures and what a definition records of itself."""
