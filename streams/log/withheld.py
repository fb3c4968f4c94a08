"""What a reader gives for a value that is too large to be held."""


class Withheld(bytes):
    """Stands for a value that is too large to be held; has no bytes itself."""

    detail: str
    first: int | None = None
    """Of a whole batch: its first offset."""

    @classmethod
    def because(cls, detail: str, first: int | None = None) -> "Withheld":
        """Say why, and from which offset on."""
        withheld = cls()
        withheld.detail, withheld.first = detail, first
        return withheld
