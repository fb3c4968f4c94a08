"""Under which key a record stands, so that what belongs together is read in order.

Invariant: a session's events share a key, and so do all samples and outcomes of a group.
"""

from schemas.control import Paused, Resumed


def event_key(session_id: str) -> bytes:
    """Of events and traces."""
    return session_id.encode()


def sample_key(session_id: str, group_id: str | None) -> bytes:
    """Of samples, revisions and outcomes."""
    return (group_id or session_id).encode()


def run_key(run_id: str) -> bytes:
    """Of optimizer steps."""
    return run_id.encode()


def control_key(record: Paused | Resumed) -> bytes:
    """Of weight updates, of which the last of a key is kept.

    A run's last `paused` and last `resumed` both are, and a record of an earlier epoch, which
    counts for nothing, takes the place of none that does.
    """
    if isinstance(record, Paused):
        return f"paused/{record.run_id}".encode()
    return f"resumed/{record.run_epoch}/{record.run_id}".encode()
