"""How an answer that a script gives as words becomes tokens.

Messages are written as Qwen3 and its kin write them: thinking and calls in tags, a call as JSON.

Invariant: the same rule gives the same tokens and logprobs on every machine.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer

from streams.adapters.engines.interface import Experts

LOGPROB_STEPS = 4096
LOGPROB_STEP = 1 / 1024
"""A power of two, so that the logprob is the same as float32 and float64."""
EXPERTS = 64


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def derived_logprobs(ids: Sequence[int]) -> tuple[float, ...]:
    """One for each token, between -4 and 0, by token and place."""
    return tuple(
        -(1 + crc32(f"{token},{place}".encode()) % LOGPROB_STEPS) * LOGPROB_STEP
        for place, token in enumerate(ids)
    )


def derived_experts(before: Sequence[int], layers: int, choices: int) -> Experts:
    """A row for each token, by the token before it, whose pass sampled it."""
    rows = [
        crc32(f"{token},{number}".encode()) % EXPERTS
        for token in before
        for number in range(layers * choices)
    ]
    data = np.asarray(rows, np.int32).tobytes()
    return Experts(dtype="int32", shape=(len(before), layers * choices), data=data)


def written(message: Mapping[str, Any]) -> str:
    """An assistant message as a model writes it, without its end."""
    reasoning = message.get("reasoning_content")
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    calls = [_written_call(call) for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    return thought + "\n".join([*([content] if content else []), *calls])


def _written_call(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def drifted(tokenizer: Tokenizer, ids: Sequence[int], every: int) -> list[int]:
    """Every n-th token, where that is possible, as several that read the same."""
    markers = tokenizer.get_added_tokens_decoder().keys()  # their letters would be text
    spelled: list[int] = []
    for place, token in enumerate(ids, 1):
        due = place % every == 0 and token not in markers
        spelled += _divided(tokenizer, token) if due else [token]
    return spelled


def _divided(tokenizer: Tokenizer, token: int) -> list[int]:
    text = decoded(tokenizer, [token])
    half = len(text) // 2
    parts = [*encoded(tokenizer, text[:half]), *encoded(tokenizer, text[half:])]
    whole = "\ufffd" not in text and decoded(tokenizer, parts) == text
    return parts if whole else [token]
