"""How long a test waits for what must happen."""

HANGS = 120.0
"""Real seconds after which what a test waits for counts as hanging: many times what a slow and busy machine needs."""
