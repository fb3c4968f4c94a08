"""The last hop: finished samples from the log into a training loop.

    subscribing    subscribe(), subscribe_async(): everything one may ask for
    subscription   the loop's side: batches, commit, state_dict; `asynchronous` is its twin
    batches        what the loop is given: groups, rollouts, samples, weights
    book           what was read and not yet trained
    feed           the thread that reads; `sources` alone, `sharing` as one of a Kafka group
    state          what goes into the trainer's own checkpoint

Invariant: torch is never imported by what reads the log.
"""

from streams.trainer.batches import Batch, Row
from streams.trainer.subscribing import subscribe, subscribe_async
from streams.trainer.subscription import Subscription

__all__ = ["Batch", "Row", "Subscription", "subscribe", "subscribe_async"]
