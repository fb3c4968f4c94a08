"""The token side of a recorded turn: where its ids lie, and the sums that guard them.

Invariant: the sums after a turn's first n ids are those of exactly these ids, however they came
to be stored.
"""

from typing import Any
from zlib import crc32

from schemas.events import Turn
from schemas.record import Ids
from streams.adapters.gateway.history.tree import Node, RecordedTurn
from streams.core.delta import Block, grown, prompt_hash, read
from streams.errors import BadEvent


def prompt_sums(event: Turn, base: RecordedTurn | None) -> tuple[Any, int]:
    """Digest and checksum of the whole prompt; a turn that no reader takes is refused."""
    kept_ids = kept_ids_of(event, base)
    if base is not None and kept_ids > base.end:
        detail = f"turn {event.turn_id} keeps {kept_ids} ids, its base has {base.end}"
        raise BadEvent("invalid_field", detail, turn_id=event.turn_id)
    suffix = _bytes(event.prompt_ids)
    hashed, checked = sums(base, kept_ids)
    hashed.update(suffix)
    if event.prompt_digest is not None and event.prompt_digest != hashed.digest():
        detail = f"turn {event.turn_id}: the whole prompt is not the one its digest is of"
        raise BadEvent("digest_mismatch", detail, turn_id=event.turn_id)
    return hashed, crc32(suffix, checked)


def sums(base: RecordedTurn | None, kept_ids: int) -> tuple[Any, int]:
    """The running digest and checksum after a base's first ids; the digest is a copy."""
    if base is None:
        return prompt_hash(), 0
    if kept_ids == base.end:
        hashed, checked = base.end_sums
    elif kept_ids == base.prompt_len:
        hashed, checked = base.prompt_sums
    elif kept_ids > base.prompt_len:
        hashed, checked = base.prompt_sums
        more = read(base.block, base.prompt_len, kept_ids)
        hashed = hashed.copy()
        hashed.update(more)
        return hashed, crc32(more, checked)
    else:
        kept = read(base.block, 0, kept_ids)
        hashed = prompt_hash()
        hashed.update(kept)
        return hashed, crc32(kept)
    return hashed.copy(), checked


def acknowledged(
    base: RecordedTurn | None, kept_messages: int, kept_ids: int
) -> tuple[RecordedTurn | None, int, int]:
    """The deepest base that the log has, and what a prompt keeps of it."""
    while base is not None and base.position is None:
        kept_messages = min(kept_messages, base.kept_messages)
        kept_ids = min(kept_ids, base.kept_ids)
        base = base.base
    return (base, kept_messages, kept_ids) if base is not None else (None, 0, 0)


def with_tokens(
    event: Turn, base: RecordedTurn | None, place: Node, hashed: Any, checked: int
) -> RecordedTurn:
    kept_ids = kept_ids_of(event, base)
    suffix, output = _bytes(event.prompt_ids), _bytes(event.output_ids)
    whole = hashed.copy()
    whole.update(output)
    prompt_len = kept_ids + len(event.prompt_ids)
    return RecordedTurn(
        turn_id=event.turn_id,
        place=place,
        base=base,
        kept_ids=kept_ids,
        kept_messages=kept_messages_of(event, base),
        tools_digest=event.tools_digest,
        block=grown(base.block if base else Block(), kept_ids, suffix, output),
        prompt_len=prompt_len,
        end=prompt_len + len(event.output_ids),
        prompt_sums=(hashed, checked),
        end_sums=(whole, crc32(output, checked)),
        prev=event.prev,
        broken=not event.delivered,
    )


def kept_ids_of(event: Turn, base: RecordedTurn | None) -> int:
    return 0 if base is None else event.kept_ids or 0


def kept_messages_of(event: Turn, base: RecordedTurn | None) -> int:
    return 0 if base is None else event.kept_messages or 0


def _bytes(ids: Ids) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()
