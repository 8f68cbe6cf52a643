"""What several suites share: fault injection, scenarios, the oracle that judges them, named programs, stand-ins."""
