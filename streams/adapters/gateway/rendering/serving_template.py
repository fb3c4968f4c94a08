"""The template to serve a model with after training: the one that prints what it was trained on.

Reasoning stays in the history here, and most templates take it out before a new question. A model
that is served with such a template sees histories that it was never trained on. Three ways lead to
a template that matches:

    as it is     it prints what the gateway builds
    switches     it does when told to, e.g. preserve_thinking
    changed      it does with one of its conditions fixed

Invariant: what is given prints every probe exactly as the gateway builds it, and only appends.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering import probes
from streams.adapters.gateway.rendering.encoding import RenderFailed, as_ids
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.rendering.template import Template
from streams.adapters.gateway.rendering.trials import STEPS, grown, switches_in

_CONDITION = re.compile(r"{%-?\s*(?:el)?if\s+(.+?)\s*-?%}", re.DOTALL)
_LOOKS_ROUND = re.compile(r"\b(loop|index|last\w*|\w*_index|ns)\b")
"""Conditions that ask where a message stands; those about what it holds are left alone."""
_TRIES_MAX = 200


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve with."""

    text: str
    switches: Mapping[str, bool]
    """To be given with every request."""
    changed: str | None = None
    """The condition that was fixed, where the template itself would not do."""


def serving(renderer: Renderer) -> Serving | None:
    """What prints histories as they are trained on; None if nothing is found that does."""
    text = renderer.template_text
    if text is None:
        return None
    if _matches(renderer, renderer.printing(text)):
        return Serving(text, {})
    switches = switches_in(text)
    if switches and _matches(renderer, renderer.printing(text, switches)):
        return Serving(text, switches)
    for condition, changed in _fixed(text):
        try:
            if _matches(renderer, renderer.printing(changed)):
                return Serving(changed, {}, condition)
        except RenderFailed:
            continue  # fixed like this it prints nothing; the next may do
    return None


def _fixed(text: str) -> Iterator[tuple[str, str]]:
    """The template with one condition fixed, for each that looks round; the plainest first."""
    found = [match for match in _CONDITION.finditer(text) if _LOOKS_ROUND.search(match[1])]
    for match in sorted(found, key=lambda match: len(match[1]))[: _TRIES_MAX // 2]:
        for value in ("true", "false"):
            yield match[1], text[: match.start(1)] + value + text[match.end(1) :]


def _matches(renderer: Renderer, template: Template) -> bool:
    """Whether it prints what the gateway builds, and only appends."""
    if not grown(renderer, template).appends:
        return False
    pairs: list[tuple[list[int] | None, list[int]]] = []
    for tools, before, answer, new in STEPS.values():
        messages = [*before, answer, *new]
        with contextlib.suppress(RenderFailed):
            printed = renderer.encode_printed(template.render(messages, tools))
            pairs.append((_sampled(renderer, template, messages, tools), printed))
    # Answers from elsewhere keep their reasoning where a conversation is put together.
    for tools, messages in probes.CONVERSATIONS if renderer.composes else ():
        with contextlib.suppress(RenderFailed):
            printed = renderer.encode_printed(template.render(messages, tools))
            pairs.append((renderer.full(messages, tools).tolist(), printed))
    return bool(pairs) and all(built == printed for built, printed in pairs)


def _sampled(
    renderer: Renderer, template: Template, messages: Sequence[Message], tools: Sequence[Tool]
) -> list[int] | None:
    """The last prompt of a conversation whose answers were sampled as the template prints them."""
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    ids = renderer.head(messages[: answers[0]], tools)
    for at, following in zip(answers, [*answers[1:], len(messages)], strict=True):
        told = renderer.encode_printed(template.render(messages[: at + 1], tools, opened=False))
        if told[: len(ids)] != ids:
            return None
        output = told[len(ids) :]
        while output and output[-1] not in renderer.stop_ids:
            output.pop()
        new = renderer.after(as_ids(ids), as_ids(output), messages[at + 1 : following], tools)
        if new is None:
            return None
        ids = [*ids, *output, *new.ids]
    return ids
