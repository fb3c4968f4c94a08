"""What the gateway needs of an engine: ids in, a stream of ids with logprobs out.

    Generation(input_ids, sampling, ...) ──► Tokens, Tokens, ..., the last with a finish

An engine that is stopped for a weight update ends with finish `abort`; the gateway may go on
from what was sampled, in one more generation.

Invariant: one logprob for each id, of the distribution that was sampled from; what is given was
sampled, nothing is trimmed, the stop token included.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from schemas.record import Ids
from streams.errors import TurnstreamError

Finish = Literal["stop", "length", "abort"]


class EngineError(TurnstreamError):
    """The engine failed or is not there; the text names it."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        """Whether the same request may succeed later."""
        super().__init__(message)
        self.retryable = retryable


class NoLogprobs(EngineError):
    """A token came without a logprob of its own."""


class KeyRefused(EngineError):
    """The engine wants a key, or another one; the text names the setting."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        """Asking again would not mend it."""
        super().__init__(message, retryable=retryable)


class EngineAway(EngineError):
    """Nobody answers at its address."""


class WrongEngine(EngineError):
    """Somebody answers at that address, but not the engine that was named."""

    def __init__(self, message: str) -> None:
        """Asking again would not mend it."""
        super().__init__(message, retryable=False)


class Redirected(WrongEngine):
    """Somebody answers at that address, and names another; the text has both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_new_tokens: int = 4096
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    json_schema: str | None = None
    tool_choice: str | None = None
    """`required`, or the function that has to be called; for engines that force it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request to an engine."""

    request_id: str
    """The same on a retry, so that an engine can tell."""
    routing_key: str
    """Requests with the same key should reach the same replica, whose cache has the prefix."""
    input_ids: Ids
    sampling: Sampling
    routed_experts: bool = False
    """Ask which experts computed each sampled token; engines that cannot tell give none."""
    echo: bool = False
    """Ask for the prompt as the engine has it; for checks alone, it costs the whole prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Experts by number, of the pass that sampled each token."""

    dtype: Literal["int8", "int16", "int32", "int64", "uint8"]
    shape: tuple[int, ...]
    """The first dimension is the number of sampled tokens; layers and choices may be one."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Some more sampled tokens."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_version: int | None = None
    weight_label: str | None = None
    finish: Finish | None = None
    """Set on the last."""
    stop_reason: str | None = None
    """The engine's own word for it."""
    weight_runs: tuple[tuple[int | None, int], ...] | None = None
    """On the last: `(version, tokens)` over the whole generation, instead of what was said before.

    For engines that tell at the end; None as a version: the engine's label is no number."""
    run_labels: tuple[str, ...] = ()
    """The engine's own labels of `weight_runs`, one for each."""
    routed_experts: Experts | None = None
    """On the last, if asked for: of the whole generation."""
    experts_wrong: str | None = None
    """Why those that came cannot be used; the tokens can."""
    prompt_ids: tuple[int, ...] | None = None
    """If asked for, on the first that has it."""


class Engine(Protocol):
    """A thing that samples."""

    @property
    def name(self) -> str:
        """For logs and errors: an address, or what it is."""
        ...

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        """Whether logprobs are of the distribution sampled from."""
        ...

    @property
    def forces_calls(self) -> bool:
        """Whether it heeds `Sampling.tool_choice`."""
        ...

    def generate(self, generation: Generation) -> AsyncIterator[Tokens]:
        """Sample; closing the iterator early aborts.

        Raises:
            EngineError: at once or in the middle.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a generation; no error if it is over."""
        ...

    async def require_ready(self) -> None:
        """Return if it can be asked.

        Raises:
            EngineError: it cannot, and why.
        """
        ...

    async def close(self) -> None:
        """Let go, bounded."""
        ...


@runtime_checkable
class Replicated(Protocol):
    """An engine of several replicas, each with weights of its own."""

    def replica_of(self, request_id: str) -> str | None:
        """Which of them samples a request that is under way."""
        ...


@runtime_checkable
class Learns(Protocol):
    """An engine that can be asked whose logprobs it gives, instead of being believed."""

    @property
    def learned(self) -> bool:
        """Whether `logprobs` is what was found, no more than assumed."""
        ...

    async def learn(self) -> None:
        """Ask, once; bounded.

        Raises:
            EngineError: it does not answer; it may be asked again.
        """
        ...
