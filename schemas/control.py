"""Weight updates on `turnstream.control`; every gateway reads the last of every run."""

from schemas.record import Count, Int64, Name, Record

DEFAULT_RUN = "default"
"""Of sessions that name no run."""


class Paused(Record, frozen=True, kw_only=True, tag="paused"):
    """No new generation begins until `resumed`."""

    run_id: Name


class Resumed(Record, frozen=True, kw_only=True, tag="resumed"):
    """Generation goes on with these weights."""

    run_id: Name
    version: Int64
    """Grows within an epoch; a record with a lower one counts for nothing."""
    run_epoch: Count = 0
    cache_flushed: bool = False
    """Whether the engine forgot what the weights before had computed of its prompts."""


CONTROL_TYPES: tuple[type[Record], ...] = (Paused, Resumed)
