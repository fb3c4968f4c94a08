"""Weight updates on `turnstream.control`, keyed by run; every gateway reads them."""

from schemas.record import Count, Int64, Name, Record


class Paused(Record, frozen=True, kw_only=True, tag="paused"):
    """Generation stops until `resumed`."""

    run_id: Name


class Resumed(Record, frozen=True, kw_only=True, tag="resumed"):
    """Generation goes on with these weights."""

    run_id: Name
    version: Int64
    run_epoch: Count = 0
    cache_flushed: bool = False


CONTROL_TYPES: tuple[type[Record], ...] = (Paused, Resumed)
