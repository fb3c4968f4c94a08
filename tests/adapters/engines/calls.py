"""Calls of an engine and what came of them, in the Qwen3 vocabulary."""

import contextlib
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from streams.adapters.engines.interface import (
    Engine,
    EngineError,
    Generation,
    Sampling,
    Tokens,
)
from tests.drift.qwen3 import tokenizer_folder


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))


def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, add_special_tokens=False).ids)


def decode(ids: tuple[int, ...] | list[int]) -> str:
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


def asks(
    prompt: str | tuple[int, ...] = "How big is the repo?", key: str = "s1", **sampling: Any
) -> Generation:
    ids = encode(prompt) if isinstance(prompt, str) else prompt
    return Generation(
        request_id=f"{key}/{len(ids)}",
        routing_key=key,
        input_ids=np.asarray(ids, np.int32),
        sampling=Sampling(**sampling),
    )


@dataclass
class Came:
    """All that came of one call."""

    chunks: list[Tokens] = field(default_factory=list)
    error: EngineError | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(value for chunk in self.chunks for value in chunk.logprobs)

    @property
    def text(self) -> str:
        return decode(self.ids)

    @property
    def sizes(self) -> list[int]:
        return [len(chunk.ids) for chunk in self.chunks]

    @property
    def finish(self) -> str | None:
        assert all(chunk.finish is None for chunk in self.chunks[:-1])
        return self.chunks[-1].finish if self.chunks else None

    @property
    def stop_reason(self) -> str | None:
        return self.chunks[-1].stop_reason


async def heard(engine: Engine, generation: Generation, most: int = 10_000) -> Came:
    """Listen to the end, to an error, or until so many chunks have come."""
    came = Came()
    answer: Any = engine.generate(generation)
    async with contextlib.aclosing(answer) as stream:
        try:
            async for tokens in stream:
                came.chunks.append(tokens)
                if len(came.chunks) == most:
                    break
        except EngineError as error:
            came.error = error
    return came
