"""The one error this package raises about somebody's bytes: it names a dead-letter code.

Invariant: whoever catches it knows what happened, to which session and turn, and can go on.
"""

from schemas.dead_letters import Code


class BadRecord(ValueError):
    """A record that cannot be true or cannot be read; it becomes a dead letter."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        session_id: str | None = None,
        turn_id: str | None = None,
    ) -> None:
        """Keep the parts apart; the text of the error joins them."""
        super().__init__(code, detail)
        self.code: Code = code
        self.detail = detail
        self.session_id = session_id
        self.turn_id = turn_id

    def __str__(self) -> str:
        """`code: session s, turn t: detail`."""
        where = [f"session {self.session_id}"] if self.session_id else []
        where += [f"turn {self.turn_id}"] if self.turn_id else []
        return ": ".join([self.code, *([", ".join(where)] if where else []), self.detail])
