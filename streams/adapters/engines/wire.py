"""How an engine is spoken to: what each of them says of itself, and nothing is asked here."""

from collections.abc import Mapping
from typing import Any, Protocol

from streams.adapters.engines.interface import Generation, Tokens


class Answer(Protocol):
    """Reads one answer, event by event."""

    def tokens(self, event: bytes) -> Tokens | None:
        """What an event says, if anything.

        Raises:
            EngineError: it tells of a failure, or cannot be understood.
        """
        ...


class Wire(Protocol):
    """How an engine is spoken to."""

    @property
    def kind(self) -> str:
        """Its name, in words to people."""
        ...

    @property
    def generate_path(self) -> str: ...

    @property
    def abort_path(self) -> str: ...

    @property
    def signs(self) -> Mapping[str, str | None]:
        """Paths that answer when it is ready, with a field that no other server's has."""
        ...

    def body(self, generation: Generation) -> dict[str, Any]: ...

    def headers(self, generation: Generation) -> dict[str, str]: ...

    def answer(self, generation: Generation) -> Answer: ...

    def abort_body(self, request_id: str) -> dict[str, Any]: ...

    def is_twin(self, message: str) -> bool:
        """Whether it refused a request because it has one with the same id."""
        ...

    def is_switched_off(self, message: str) -> bool:
        """Whether it forbade a request to everybody, whatever key they have."""
        ...


UNSET_LABEL = "default"
"""What SGLang and vLLM say of weights that nobody gave a version: those they start with."""


def weight_version(label: str | None) -> int | None:
    """The number that an engine's label is, if it is one."""
    if label is None or not (label.isascii() and label.isdecimal()):
        return None
    return int(label) if len(label) < len(str(2**63)) else None
