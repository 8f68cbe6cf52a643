"""The deterministic event loop of workflow code, and the calls that it refuses."""
