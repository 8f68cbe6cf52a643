"""Instances in Redis, Valkey or a Redis Cluster."""
