"""Messages become token ids: one tokenizer, one template, one way to keep reasoning.

    full     a whole conversation and the header of the answer to come
    after    only what comes after a recorded turn, found in one of two ways
               bridge   by the renderer of a model family that is known
               suffix   by a marker in a stub of the history, where that was tested
    given    an answer that was not sampled here, put into a history

Both ways cost what the new messages cost, whatever the length of the history. Reasoning stays in
the history (retention "all"), also where the template by itself would take it out before a new
question: `full` puts a conversation together answer by answer.

A system message in the middle is printed where it stands; a template that refuses it, or moves
it to the front, gets a user's message instead, marked as the system's.

Invariant: the same arguments give the same ids, and `fingerprint` names everything else that
they depend on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from schemas.record import Ids
from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.history.matching import with_own_reasoning
from streams.adapters.gateway.rendering import probes
from streams.adapters.gateway.rendering.bridge import Bridge, FamilyRenderer, find_bridge
from streams.adapters.gateway.rendering.composing import Item, Rendered, Spoken, compose
from streams.adapters.gateway.rendering.encoding import Encoder, RenderFailed, as_ids
from streams.adapters.gateway.rendering.files import (
    fingerprint_of,
    generation_ends,
    load_tokenizer,
    template_text,
)
from streams.adapters.gateway.rendering.fitting import Fitting
from streams.adapters.gateway.rendering.suffix import Suffix, find_suffix
from streams.adapters.gateway.rendering.template import Template
from streams.errors import BadSetting

_SYSTEM_BLOCK = "<system>\n{}\n</system>"
_WINDOW = 64
_PADDING_IDS = 1024
"""Models are given some ids more than their tokenizer, so that sizes are round."""


class Renderer:
    """One tokenizer folder with its template."""

    def __init__(
        self,
        folder: Path,
        *,
        template: Path | None = None,
        family: str = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load and try everything once.

        Args:
            folder: tokenizer.json and its configuration; nothing is fetched.
            template: a Jinja file in place of the tokenizer's own template.
            family: a family of `renderers`, "auto" to find it, "none" to do without.
            options: the template's own, e.g. {"enable_thinking": False}.

        Raises:
            BadSetting: the folder or the template cannot be used.
        """
        options = dict(options or {})
        self.tokenizer = load_tokenizer(folder)
        self.backend: Tokenizer = self.tokenizer.backend_tokenizer
        self._encoder = Encoder(self.backend)
        self.fitting = Fitting(self.backend)
        known = (self.backend.get_vocab_size() - 1, *self.backend.get_added_tokens_decoder())
        self.ids_max = max(known) + _PADDING_IDS
        """No model that goes with the tokenizer has a higher id."""
        text = self.template_text = template_text(self.tokenizer, template)
        self.fingerprint = fingerprint_of(folder, self.backend, text, options)
        self.options = options
        self._template = plain = None
        if text is not None:
            self._template = Template(self.tokenizer, self._encoder, text, options)
            plain = Template(self.tokenizer, self._encoder, text, {})
        self._bridge: Bridge | None = None
        if family != "none":
            self._bridge = find_bridge(family, self.tokenizer, self._encoder, options, plain)
        self._suffix: Suffix | None = None
        self.suffix_tested = "there is no template"
        """Why there is a suffix, or none."""
        if self._template is not None:
            self._suffix, self.suffix_tested = find_suffix(self._template, self._encoder)
        self.stop_ids = self._find_stop_ids(folder)
        self.system_in_place = self.composes = True
        self._try_one(folder)
        self.system_in_place = self._prints_system_in_place()
        self.composes = self._composed_is_whole()

    @property
    def family(self) -> str | None:
        """The family whose renderer is used, if one is."""
        return self._bridge.family if self._bridge else None

    @property
    def family_renderer(self) -> FamilyRenderer | None:
        """The renderer that reads the family's answers, too."""
        return self._bridge.renderer if self._bridge else None

    @property
    def appends(self) -> bool:
        """Whether new messages can be rendered without the history."""
        return self._bridge is not None or self._suffix is not None

    @property
    def repeats_tools(self) -> bool:
        """Whether the tools are rendered behind an answer, too, and not only at the head."""
        return self._suffix is not None and self._suffix.with_tools

    def printing(self, text: str, options: Mapping[str, Any] = {}) -> Template:
        """A template as anybody prints it who does not ask it to keep reasoning."""
        return Template(
            self.tokenizer, self._encoder, text, {**self.options, **options}, switches={}
        )

    def encode_printed(self, text: str) -> list[int]:
        """The ids of what a template printed."""
        return self._encoder.encode(text)

    @property
    def guards(self) -> bool:
        """Whether control tokens that a client spells stay text."""
        return self._encoder.guards

    def encode(self, text: str) -> list[int]:
        """The ids of a text, in which control tokens are only spelled."""
        return self._encoder.encode(self._encoder.guard(text))

    def control_id(self, spelling: str) -> int | None:
        """The id of a control token."""
        return self._encoder.control_id(spelling)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return self._encoder.decode(ids)

    def has_end(self, output: Ids) -> bool:
        """Whether an answer's ids end with an end token."""
        return output.size > 0 and int(output[-1]) in self.stop_ids

    def full(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """A whole conversation; `RenderFailed` if the template refuses it."""
        if self.composes:
            items = [Item(message) for message in messages]
            composed = compose(self, None, items, tools)
            if composed is not None:
                return as_ids(composed.ids)
        return as_ids(self.whole(messages, tools))

    def whole(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """A whole conversation in one go, as the template prints it."""
        prefill = messages[-1]["role"] == "assistant"
        if prefill and self._suffix is not None and self._suffix.tail is not None:
            first, answer = self._printed(messages[:-1]), with_own_reasoning(messages[-1])
            _, open_ended = self._suffix.beginning(first, answer, tools)
            return self._encoder.encode(open_ended)
        ids = self._render(self._printed(messages), tools, opened=not prefill)
        if prefill:
            ends = [at for at, token in enumerate(ids) if token in self.stop_ids]
            return ids[: ends[-1]] if ends else ids
        return ids

    def head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The start of a conversation, up to the header of its first answer."""
        return self._render(self._printed(messages), tools, opened=True)

    def after(
        self, prompt: Ids, output: Ids, new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        """What comes after a recorded turn, up to the header of the next answer.

        Closes the turn first if its output has no end token. None where it cannot be told from
        the turn's end alone.
        """
        new = self._printed(new, follow=True)
        if self._bridge is not None:
            end = self._last_header(prompt) if self._bridge.short else prompt
            ids = self._bridge.after(end, output, new, tools)
            if ids is not None:
                return Rendered(ids, "bridge")
        if self._suffix is None:
            return None
        try:
            text = self._suffix.after(new, tools)
        except RenderFailed:
            return None
        return Rendered(self._closing(prompt, output) + self._encoder.encode(text), "suffix")

    def given(
        self,
        spoken: Spoken | None,
        new: Sequence[Message],
        answer: Message,
        tools: Sequence[Tool],
        *,
        closed: bool,
    ) -> list[int] | None:
        """What follows an answer, through one that was not sampled here.

        Without `closed` it ends inside that answer. None where it cannot be rendered by itself.
        """
        if self._suffix is None:
            return None
        answer = with_own_reasoning(answer)
        try:
            if spoken is None:
                texts = self._suffix.beginning(self._printed(new), answer, tools)
                return self._encoder.encode(texts[0] if closed else texts[1])
            texts = self._suffix.through(self._printed(new, follow=True), answer, tools)
        except RenderFailed:
            return None
        ids = self._encoder.encode(texts[0] if closed else texts[1])
        return self._closing(spoken.prompt, spoken.output) + ids

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, opened: bool
    ) -> list[int]:
        if self._bridge is not None:
            return self._bridge.render(messages, tools, opened=opened)
        assert self._template is not None, "one of the two is always there"
        return self._encoder.encode(self._template.render(messages, tools, opened=opened))

    def _printed(self, messages: Sequence[Message], *, follow: bool = False) -> list[Message]:
        """Messages in the roles the template takes; `follow` where others stand before them."""
        printed: list[Message] = []
        for message in messages:
            if message["role"] == "assistant":
                printed.append(with_own_reasoning(message))
            elif message["role"] == "system" and (printed or follow) and not self.system_in_place:
                text = _SYSTEM_BLOCK.format(message.get("content") or "")
                printed.append({"role": "user", "content": text})
            else:
                printed.append(message)
        return printed

    def _closing(self, prompt: Ids, output: Ids) -> list[int]:
        """What ends an answer that was cut: its reasoning, if it is still thinking, and itself."""
        if self._suffix is None or self.has_end(output):
            return []
        stop = self._encoder.control_id(self._suffix.stop)
        assert stop is not None, "a suffix begins after a token"
        opening, closing = (self._encoder.control_id(text) for text in ("<think>", "</think>"))
        said = np.concatenate([self._last_header(prompt), output])
        thinks = opening is not None and closing is not None
        if thinks and _last(said, opening) > _last(said, closing):
            return [int(closing or 0), stop]
        return [stop]

    def _last_header(self, prompt: Ids) -> Ids:
        """The end of a prompt, after the last end token in it."""
        window = _WINDOW
        while True:
            end = prompt[-window:].tolist()
            for back in range(1, len(end) + 1):
                if end[-back] in self.stop_ids:
                    return prompt[prompt.size - back + 1 :]
            if window >= prompt.size:
                return prompt
            window *= 8

    def _find_stop_ids(self, folder: Path) -> tuple[int, ...]:
        found = generation_ends(folder)
        if self._bridge is not None:
            found = [*self._bridge.stop_ids, *found]
        else:
            stop = self._encoder.control_id(self._suffix.stop) if self._suffix else None
            ends = (stop, self.tokenizer.eos_token_id)
            found = [*(token for token in ends if isinstance(token, int)), *found]
        return tuple(dict.fromkeys(found))

    def _try_one(self, folder: Path) -> None:
        if self._template is None and self._bridge is None:
            raise BadSetting(
                f"{folder} has no chat template: name a template file or a model family"
            )
        try:
            self.head([probes.USER], ())
        except RenderFailed as error:
            raise BadSetting(f"{folder}: not even one message can be printed: {error}") from error

    def _prints_system_in_place(self) -> bool:
        middle: Message = {"role": "system", "content": "It got dark."}
        messages = [probes.SYSTEM, probes.USER, probes.said("A wall."), middle, probes.USER_AGAIN]
        try:
            text = self.decode(self._render(messages, (), opened=True))
        except RenderFailed:
            return False
        places = [text.find(message["content"]) for message in messages]
        return places[0] >= 0 and places == sorted(places) and text.count("It got dark.") == 1

    def _composed_is_whole(self) -> bool:
        """Whether a conversation put together is the one that is printed in one go.

        Tried where no template takes reasoning out: answers without any, and the steps of one
        answer to one question. Empty thoughts that the header of an answer holds do not count.
        """
        empty = self._suffix.no_thought if self._suffix else ""
        for tools, messages in probes.CONVERSATIONS:
            thought = any("reasoning_content" in message for message in messages)
            if thought and sum(message["role"] == "user" for message in messages) > 1:
                continue
            try:
                ids = (self.full(messages, tools), self.whole(messages, tools))
            except RenderFailed:
                continue  # what cannot be printed differs from nothing
            composed, whole = (self.decode(each) for each in ids)
            if composed.replace(empty, "") != whole.replace(empty, ""):
                return False
        return True


def _last(ids: Ids, token: int | None) -> int:
    found = np.flatnonzero(ids == token)
    return int(found[-1]) if found.size else -1
