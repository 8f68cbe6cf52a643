"""Move live runs from one store to another."""

from resurgam.store.move.move import Move, Moved, Options, Progress

__all__ = ["Move", "Moved", "Options", "Progress"]
