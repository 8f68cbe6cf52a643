"""Steps that are services: what is sent to them, where it may go, and what their answers mean."""
