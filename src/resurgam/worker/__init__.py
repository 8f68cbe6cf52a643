"""Claims instances and activities, advances them, and commits what came of it."""
