"""The command ``resurgam``: parse, call the engine, print."""
