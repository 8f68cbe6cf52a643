"""Match each durable call with the recorded history."""
