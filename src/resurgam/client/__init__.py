"""Starts workflows, talks to them, and waits for what they give."""
