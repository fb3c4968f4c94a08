"""One turn id, told twice: the same turn again, or two turns that claim one name?

Invariant: a redelivery changes nothing; two contents under one id never pass as one.
"""

import numpy as np

from schemas.events import Turn
from streams.core.delta import prompt_hash, read, stored_together
from streams.core.messages import read_message
from streams.core.recorded import RecordedTurn
from streams.core.tree import Tree
from streams.errors import BadEvent


def check_twin(tree: Tree, known: RecordedTurn, event: Turn) -> None:
    """Raise `forked_turn_id` unless the event tells the known turn again."""
    base, kept, same = tree.base_of(event), event.kept_ids or 0, 0
    told_prompt = event.prompt_ids.tobytes()
    if base is not None:
        same = stored_together(base.block, kept, known.block, known.prompt_len)
        told_prompt = read(base.block, same, kept) + told_prompt
    prompt_equal = told_prompt == read(known.block, same, known.prompt_len)
    if event.prompt_digest is not None:
        if prompt_equal and known.prompt_hash is not None:
            running = known.prompt_hash
        else:
            running = prompt_hash()
            running.update(read(known.block, 0, same) + told_prompt)
        if running.digest() != event.prompt_digest:
            detail = "the event's `prompt_digest` is not that of its own prompt"
            raise BadEvent("digest_mismatch", detail)
    digest = None
    if event.response_message:
        digest = read_message(event.response_message, tree.policy.identity).digest
    told = known.event.logprobs
    equal = {
        "prompt": prompt_equal,
        "output_ids": event.output_ids.tobytes() == read(known.block, known.prompt_len, known.end),
        "logprobs": (told is None) == (event.logprobs is None)
        and (told is None or event.logprobs is None or np.array_equal(told, event.logprobs)),
        "response_message": digest == (known.response.digest if known.response else None),
    }
    differing = [name for name, told_again in equal.items() if not told_again]
    if differing:
        detail = f"turn {event.turn_id} was recorded with another {differing[0]}; "
        detail += "a turn id names one turn of its session"
        raise BadEvent("forked_turn_id", detail)
