"""Servers for development and for tests, started without preparation."""
