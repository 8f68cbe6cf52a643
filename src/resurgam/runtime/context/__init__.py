"""The workflow API: one module per family of durable calls, behind `Context`."""
