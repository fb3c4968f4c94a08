"""Whether a record is read back as it was written, with the packages that are installed.

Invariant: the check is the one that every other command makes before it begins.
"""

from pathlib import Path

from schemas.round_trip import RecordsChanged, check_round_trip, versions
from streams.cli.doctor.finding import Finding, failed, ok


def findings(*, tokenizer: Path | None, log: str | None, engine: str | None) -> list[Finding]:
    """A turn and a sample, on the wire and as JSON."""
    try:
        check_round_trip()
    except RecordsChanged as error:
        trouble, _, change = str(error).rpartition("; ")
        return [failed("records", trouble, change)]
    return [ok("records", f"a turn and a sample are read back as written: {versions()}")]
