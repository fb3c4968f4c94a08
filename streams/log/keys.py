"""Under which key a record stands, so that what belongs together is read in order.

Invariant: a session's events share a key, and so do all samples and outcomes of a group.
"""


def event_key(session_id: str) -> bytes:
    """Of events and traces."""
    return session_id.encode()


def sample_key(session_id: str, group_id: str | None) -> bytes:
    """Of samples, revisions and outcomes."""
    return (group_id or session_id).encode()


def run_key(run_id: str) -> bytes:
    """Of optimizer steps and weight updates."""
    return run_id.encode()
