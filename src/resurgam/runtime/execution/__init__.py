"""One execution: deliver recorded and new entries to the code, return the outcome to commit."""
