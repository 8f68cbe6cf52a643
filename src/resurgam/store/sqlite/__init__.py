"""Instances in a SQL database."""
