"""Definitions of workflows and activities, their signatures, and the identity of running code."""
