"""What a claim about a session's life is: events, the rules they run under, a transcript."""

from dataclasses import dataclass, field
from inspect import cleandoc

from streams.core.state import Rules
from tests.core.notation import Json


@dataclass(frozen=True)
class Claim:
    """Events at positions 1, 2, ... and everything that follows from them."""

    events: list[Json]
    golden: str
    rules: Rules = field(default_factory=Rules)

    @property
    def transcript(self) -> str:
        return cleandoc(self.golden)
