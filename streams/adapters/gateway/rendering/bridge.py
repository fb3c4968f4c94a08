r"""What a model family's own renderer prints after a recorded turn, from the end of it alone.

The `renderers` package writes prompts of the families it knows as ids and extends recorded ids
without touching them. It is given the end of the recorded prompt, from the last header on, in
place of the whole: the cost does not grow with the history. Whether a family needs no more than
that is tried at the start; one that does gets the whole prompt.

    recorded   ... <|im_start|>assistant\n   <think>...<|im_end|>
                   └ all that is passed      └ output            then: \n<|im_start|>user ...

A family is taken for a tokenizer when it prints every probe exactly as the tokenizer's own
template does. Names of models play no part.

Invariant: what is returned is only what comes after the output; ids that the package changed or
cut away make it return None.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from schemas.record import Ids
from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering import probes
from streams.adapters.gateway.rendering.encoding import BeyondLimit, Encoder, RenderFailed
from streams.adapters.gateway.rendering.package import config_from_name, create_renderer
from streams.adapters.gateway.rendering.template import (
    KEEP_REASONING,
    RETENTION,
    Template,
    printable,
)
from streams.errors import BadSetting

FAMILIES = (
    *("qwen3", "prime-qwen3", "qwen3.5", "qwen3.6", "qwen3.8", "qwen3-vl"),
    *("glm-4.5", "glm-5", "glm-5.1", "glm-5.3", "kimi-k2", "kimi-k2.5", "minimax-m2"),
    *("deepseek-v3", "deepseek-r1", "deepseek-v4", "llama-3", "gemma4", "hy3", "inkling"),
    *("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"),
    *("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"),
)
"""Tried in this order. gpt-oss is left out: its vocabulary is fetched from outside."""


class FamilyRenderer(Protocol):
    """What is used of a renderer of the package."""

    def render_ids(self, messages: Any, *, tools: Any, add_generation_prompt: bool) -> list[int]:
        """A conversation as ids."""
        ...

    def bridge_to_next_turn(
        self, prompt: list[int], output: list[int], new: Any, *, tools: Any = None
    ) -> Any:
        """Both extended by the new messages, as an object with `token_ids`; None if it cannot."""
        ...

    def parse_response(
        self, token_ids: list[int], *, tools: Any = None, prompt_ids: list[int] | None = None
    ) -> Any:
        """Sampled ids as a message."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """The ids that end an answer."""
        ...


class _Tokenizer:
    """The tokenizer as the package sees it: guarded text, no offsets, so that it is fast."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, encoder: Encoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        # Asked for several times a turn, and slow to ask.
        self.unk_token_id = tokenizer.unk_token_id
        self.convert_tokens_to_ids = functools.cache(tokenizer.convert_tokens_to_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *_args: object, **_options: object) -> Any:
        # The package asks for offsets this way, to tell wrapping from content; nobody reads
        # that here, and without an answer it encodes the same text by `encode`.
        raise NotImplementedError

    def encode(self, text: str, *_args: object, **_options: object) -> list[int]:
        return self._encoder.encode(text)

    def decode(self, ids: Any, *_args: object, **_options: object) -> str:
        return self._encoder.decode(ids)


class Bridge:
    """One family's renderer for one tokenizer."""

    def __init__(
        self,
        family: str,
        tokenizer: PreTrainedTokenizerBase,
        encoder: Encoder,
        options: Mapping[str, Any],
    ) -> None:
        """Raise whatever the package raises when the tokenizer is of another family."""
        self.family = family
        self._encoder = encoder
        self.renderer = _family_renderer(family, _Tokenizer(tokenizer, encoder), options)
        self.stop_ids = tuple(self.renderer.get_stop_token_ids())
        end_of_thought = encoder.control_id("</think>")
        self._end_of_thought = [] if end_of_thought is None else [end_of_thought]
        self.short = self._needs_only_the_end()

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opened: bool = True
    ) -> list[int]:
        """A whole conversation."""
        try:
            return self.renderer.render_ids(
                self._given(messages),
                tools=self._encoder.guard(list(tools)) or None,
                add_generation_prompt=opened,
            )
        except BeyondLimit:
            raise
        except Exception as error:
            # Code that is not ours, on messages that are not ours: no failure of it is one here.
            raise RenderFailed(f"{self.family} cannot print the messages: {error}") from error

    def after(
        self, prompt: Ids, output: Ids, new: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> list[int] | None:
        """What follows the output; None where the package cannot say."""
        before, sampled = prompt.tolist(), output.tolist()
        given, used = self._given(new), list(tools) or None
        found = self._extension(before, sampled, given, used)
        if found is None:
            found = self._extension(before, self._stand_in(sampled), given, used)
        return found

    def _extension(
        self, before: list[int], sampled: list[int], new: list[Any], tools: list[Tool] | None
    ) -> list[int] | None:
        try:
            extended = self.renderer.bridge_to_next_turn(before, sampled, new, tools=tools)
        except BeyondLimit:
            raise
        except Exception:
            # As above; the prompt is then rendered in another way.
            return None
        if extended is None:
            return None
        kept = len(before) + len(sampled)
        ids: list[int] = extended.token_ids
        return ids[kept:] if ids[:kept] == before + sampled else None

    def _stand_in(self, sampled: list[int]) -> list[int]:
        """An output that ends like this one and that the package takes.

        It refuses one that ends while thinking, and cuts off what follows an end token; what
        comes after an output depends on its end alone.
        """
        if sampled and sampled[-1] in self.stop_ids:
            return [*self._end_of_thought, sampled[-1]]
        return self.last_header(sampled)

    def _given(self, messages: Sequence[Message]) -> list[Any]:
        return [printable(message) for message in self._encoder.guard(list(messages))]

    def _needs_only_the_end(self) -> bool:
        """Whether the last header alone leads to what the whole prompt leads to."""
        tried = 0
        for tools, messages in probes.CONVERSATIONS:
            try:
                prompt = self.render(messages, tools)
                answered = [*messages, probes.call(7, content="Once more.")]
                output = self.render(answered, tools, opened=False)[len(prompt) :]
            except RenderFailed:
                continue  # the family has no such conversation; others are tried
            if not output:
                continue
            for new in probes.FOLLOWING.values():
                whole = self.renderer.bridge_to_next_turn(prompt, output, list[Any](new))
                end = self.last_header(prompt)
                short = self.renderer.bridge_to_next_turn(end, output, list[Any](new))
                if whole is None and short is None:
                    continue
                if whole is None or short is None:
                    return False
                if whole.token_ids[len(prompt) :] != short.token_ids[len(end) :]:
                    return False
                tried += 1
        return tried > 0

    def last_header(self, prompt: Sequence[int]) -> list[int]:
        """The end of some ids, after the last end token in them."""
        ids = list(prompt)
        ends = (at + 1 for at in reversed(range(len(ids))) if ids[at] in self.stop_ids)
        return ids[next(ends, 0) :]


def _family_renderer(
    family: str, tokenizer: _Tokenizer, options: Mapping[str, Any]
) -> FamilyRenderer:
    default = config_from_name(family)
    assert default is not None, f"{family!r} names no family"
    fields = type(default).model_fields
    kept = {name: value for name, value in KEEP_REASONING.items() if name in fields}
    given = {name: value for name, value in options.items() if name in fields}
    # A config has either its template's own switch or the general one; both agree on "all".
    config = type(default)(thinking_retention=RETENTION, **kept, **given)
    renderer: FamilyRenderer = create_renderer(tokenizer, config)
    return renderer


def find_bridge(
    family: str,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    options: Mapping[str, Any],
    template: Template | None,
) -> Bridge | None:
    """The bridge of the family named, or of the first that prints what the template prints.

    They are compared without the options: under some, a family's renderer keeps on purpose what
    its template takes away again.
    """
    if family != "auto":
        return _named(family, tokenizer, encoder, options)
    if template is None:
        return None
    for name in FAMILIES:
        try:
            found = _prints_alike(Bridge(name, tokenizer, encoder, {}), template, encoder)
        except Exception:
            # Each family fails in its own way on a tokenizer that lacks its tokens.
            continue
        if found:
            return Bridge(name, tokenizer, encoder, options)
    return None


def _named(
    family: str,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    options: Mapping[str, Any],
) -> Bridge:
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise BadSetting(f"there is no model family {family!r}; there are auto, none, {known}")
    try:
        return Bridge(family, tokenizer, encoder, options)
    except Exception as error:
        raise BadSetting(f"the tokenizer is not of the family {family}: {error}") from error


def _prints_alike(bridge: Bridge, template: Template, encoder: Encoder) -> bool:
    compared = 0
    for tools, messages in probes.CONVERSATIONS:
        try:
            expected = encoder.encode(template.render(messages, tools))
        except RenderFailed:
            continue  # the template refuses it; what it prints is compared
        if bridge.render(messages, tools) != expected:
            return False
        compared += 1
    return compared > 0
