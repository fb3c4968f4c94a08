"""What the gateway's app needs of an API, so that it can serve it without knowing it.

    body ──► read_call ──► Call                 one request
    Answer ──► answer_body ──► bytes            a reply in one piece
    Piece, ..., Answer ──► stream ──► bytes     or as server-sent events
    CallRefused ──► error_body ──► bytes        with the refusal's own status

A dialect is a module: its functions and constants are the members below.

Invariant: a dialect holds no state but a stream's own; every byte it gives follows from its
arguments alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streams.adapters.dialects.calls import Answer, Call, CallRefused, Piece

Route = tuple[str, str]
"""Method and path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNames:
    """What is known of an answer before it begins; the same stands on the whole `Answer`."""

    id: str
    carrier: str
    created_s: int
    model: str


class AnswerStream(Protocol):
    """One answer as events. Each method gives what to send now; it may be nothing."""

    def start(self) -> bytes:
        """Once, before anything else."""
        ...

    def piece(self, piece: Piece) -> bytes:
        """More of the answer."""
        ...

    def end(self, answer: Answer) -> bytes:
        """The end that a client waits for; only after the turn is durable."""
        ...

    def error(self, refusal: CallRefused) -> bytes:
        """Instead of an end: the client must not take what it has for the whole."""
        ...

    def keep_alive(self) -> bytes:
        """Between start and end, a real event that adds nothing."""
        ...


class Dialect(Protocol):
    """One API."""

    NAME: str
    """In logs and metrics."""
    ROUTES: tuple[Route, ...]
    """Where calls arrive."""
    MODELS_ROUTE: Route
    """Where the models are listed; dialects may share it."""
    MARK_HEADER: str | None
    """A header that only this API's clients send; it tells dialects apart on a shared route."""
    ANSWER_PREFIX: str
    """How the ids of its answers begin; one that `gateway.minted` knows."""
    CALL_PREFIX: str
    """How the ids of tool calls begin, likewise."""
    KEY_HEADERS: tuple[str, ...]
    """Where this API's clients put their key, in order; `authorization` holds `Bearer KEY`."""
    BODY_TYPE: str
    """Content type of answers and errors."""
    STREAM_TYPE: str
    """Content type of a stream."""

    def read_call(self, body: bytes) -> Call:
        """A request.

        Raises:
            CallRefused: it cannot be read, or asks for what cannot be given.
        """
        ...

    def answer_body(self, call: Call, answer: Answer) -> bytes:
        """The reply to a call that does not stream."""
        ...

    def stream(self, call: Call, names: AnswerNames) -> AnswerStream:
        """The reply to a call that does."""
        ...

    def refuses_in_stream(self, refusal: CallRefused) -> bool:
        """Whether clients that stream act on this refusal only as an event of a stream."""
        ...

    def error_body(self, refusal: CallRefused) -> bytes:
        """A refusal in the API's own shape."""
        ...

    def models_body(self, names: Sequence[str]) -> bytes:
        """The models there are."""
        ...


class CountingDialect(Dialect, Protocol):
    """One that also tells how long a prompt is, without an answer."""

    COUNT_ROUTES: tuple[Route, ...]
    """Where such calls arrive."""

    def count_body(self, tokens: int) -> bytes:
        """How long the prompt of a call is."""
        ...
