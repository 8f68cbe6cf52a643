"""The reference store: plain dictionaries, and the oracle of the other backends."""
