"""Archives: complete histories, moved out of the store into compressed files that any tool can read."""
