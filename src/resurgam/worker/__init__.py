"""Claim instances and activities, run them, and commit the outcomes."""
