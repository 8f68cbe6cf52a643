"""The memory store as the oracle of another: random stories told to both, and everything compared after each step.

`story` has the verbs, `chance` what they say, `sides` the two stores and what they may differ in, `comparison` the
state, `coverage` the answers that must occur, `subjects` the stores that are compared.
"""
