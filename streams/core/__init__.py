"""The rules, pure: turns to a session tree, trees to samples, and the life of a session.

    messages  -> tree -> linearize -> closing -> session -> partition
    delta     ->                      rewards ->

No clock, I/O, logging or randomness: the same events give the same samples, always.
"""
