r"""Which of an answer's tokens a client kept that kept only the beginning of it.

    sampled   <think> ... </think> \n\n  The  repo  is  ab out  148 M . <|im_end|>
    kept      The repo is abo
    tokens    everything through ` is`, as sampled; ` abo` is encoded anew

A cut on a token's edge keeps sampled tokens only. A cut inside a token keeps those before it and
encodes what is left of the text. A cut between calls keeps the tokens through the last call.
Blanks at the very end are kept with what is before them.

Invariant: the ids kept are the first of the output, unchanged.
"""

from bisect import bisect_left
from collections.abc import Sequence

from schemas.record import Ids
from streams.adapters.dialects.calls import Tool
from streams.adapters.gateway.answers.grammar import usable
from streams.adapters.gateway.history.matching import Cut, reasoning_of, text_of
from streams.adapters.gateway.rendering.renderer import Renderer

_NEAR = 8
"""Tokens around a place in which one character may be spread."""


def kept_tokens(
    renderer: Renderer, output: Ids, cut: Cut, tools: Sequence[Tool]
) -> tuple[int, list[int]] | None:
    """How many ids of the output stand, and the ids of what is left of the next one.

    None where the text is not found in the tokens.
    """
    kept = _kept(renderer, output, cut, tools)
    if kept is None or kept[1]:
        return kept
    # Blanks alone begin nothing: with them the answer is whole, and stays one turn.
    return kept if renderer.decode(output[kept[0] :]).strip() else (len(output), [])


def _kept(
    renderer: Renderer, output: Ids, cut: Cut, tools: Sequence[Tool]
) -> tuple[int, list[int]] | None:
    if cut.calls:
        end = _end_of_call(renderer, output, cut.calls, tools)
        return None if end is None else (end, [])
    ids = output.tolist()
    mark = renderer.control_id("<think>" if cut.in_reasoning else "</think>")
    start = ids.index(mark) + 1 if mark in ids else 0
    said = reasoning_of(cut.message) if cut.in_reasoning else text_of(cut.message)
    found = _end_of_text(renderer, ids[start:], said.strip())
    return None if found is None else (start + found[0], found[1])


def _end_of_call(renderer: Renderer, output: Ids, calls: int, tools: Sequence[Tool]) -> int | None:
    reader = renderer.family_renderer
    if reader is None:
        return None
    try:
        seen = reader.parse_response(output.tolist(), tools=list(tools) or None)
    except (ValueError, RecursionError):
        return None
    whole = [call for call in seen.tool_calls if usable(call) is not None]
    span = whole[calls - 1].token_span if len(whole) >= calls else None
    return span[1] if span else None


def _end_of_text(renderer: Renderer, ids: list[int], said: str) -> tuple[int, list[int]] | None:
    whole = renderer.decode(ids)
    blanks = len(whole) - len(whole.lstrip())
    text = whole[: blanks + len(said)]
    if not said or text[blanks:] != said:
        return None
    # Half a character decodes to signs that vanish with its rest, so lengths grow only almost
    # steadily: look closely around where they reach the cut.
    near = bisect_left(range(len(ids)), len(text), key=lambda n: len(renderer.decode(ids[:n])))
    for number in range(min(near + _NEAR, len(ids)), -1, -1):
        before = renderer.decode(ids[:number])
        if text.startswith(before):
            rest = text[len(before) :]
            through = renderer.decode(ids[: number + 1])
            if rest and through.startswith(text) and not through[len(text) :].strip():
                return number + 1, []  # blanks behind the text were held back, not dropped
            return number, renderer.encode(rest) if rest else []
    return None
