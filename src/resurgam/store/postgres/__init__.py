"""Instances in Postgres, for workers on any number of machines."""
