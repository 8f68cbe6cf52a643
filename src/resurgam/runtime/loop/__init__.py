"""The deterministic event loop that workflow code runs on, and what it may not do there."""
