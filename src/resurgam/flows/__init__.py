"""Goal flows: name the result, and the engine plans, runs and records the steps that lead to it."""
