"""The last hop: finished samples from the log into a training loop.

    batches        what the loop is given: groups, rollouts, samples, weights

Invariant: torch is never imported by what reads the log.
"""
