"""Where instances live: the seam between the engine and its storage, and the storages behind it."""
