"""What the trainer says of an optimizer step, on `turnstream.trained`, keyed by run."""

import msgspec

from schemas.record import NOT_GIVEN, Count, Int64, Name, Record


class Trained(Record, frozen=True, kw_only=True, tag="trained"):
    """These samples went into this step."""

    run_id: Name
    step: Count
    weight_version: Int64
    sample_ids: list[str]
    run_epoch: Count = 0
    statistics: msgspec.Raw = NOT_GIVEN
    """Optional, per sample."""
    places: list[tuple[Count, Count]] | None = None
    """Where each sample stands in the samples topic: partition and offset."""


TRAINED_TYPES: tuple[type[Record], ...] = (Trained,)
