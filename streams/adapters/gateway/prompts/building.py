"""Token in, token out: the prompt of a call, built on the tokens that were recorded.

    request      system  user  answer  tool            what the client sends, all of it
    recorded     ───── t1 prompt ────  t1 output       found by `history`, taken as it is
    rendered                                   tool    only this, by `rendering`

What the client sends back of an answer is not read again: the recorded tokens go on, and the
recorded message stands in what is published. An answer that no turn gave is context and is
rendered where it stands. If there is nothing to go on from, or the tools have changed, the prompt
is rendered anew, with the recorded tokens of every answer that is known inside it.

The history is read on the event loop, which changes it; what is found there is then rendered
without it, by `Rendering`, and that may take a second and may be done in a thread.

    built      reuse    nothing rendered: a request once more, or an answer that is gone on with
               bridge   recorded tokens, then what the family's renderer puts behind them
               suffix   the same, some of it found with the marker
               render   no recorded prompt goes on

Invariant: `ids[:kept_ids]` are the base's own, checked on every call by their length and
checksum, and `prompt_digest` is the digest of `ids`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal
from zlib import crc32

import msgspec
import numpy as np

from schemas.record import Ids
from streams.adapters.dialects.calls import Call, CallRefused, Message, Tool
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.gateway.history.keeping import Part
from streams.adapters.gateway.history.recorded import History, Match, Named
from streams.adapters.gateway.history.tokens import acknowledged, sums
from streams.adapters.gateway.history.tree import Node, RecordedTurn
from streams.adapters.gateway.prompts.items import Items
from streams.adapters.gateway.rendering.composing import Composed, Item, Prefill, Spoken, compose
from streams.adapters.gateway.rendering.counting import exceeds
from streams.adapters.gateway.rendering.encoding import (
    BeyondLimit,
    RenderFailed,
    as_ids,
    encoding_at_most,
)
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.settings import Settings

Built = Literal["reuse", "bridge", "suffix", "render"]
_TOOLS_TEXT = msgspec.json.Encoder(order="deterministic").encode
_LONG = 65_536
"""Characters that are rendered and encoded in ten milliseconds."""
_EACH_MESSAGE, _EACH_VALUE = 512, 64
"""Characters that take as long as a message by itself, and as a JSON value does."""


class NotGiven(CallRefused):
    """A call goes on from an answer that is not known; `missing` are turns of ours it names."""

    def __init__(self, message: str, missing: Sequence[str], **more: str) -> None:
        """Whether it is the client's mistake is known when the log was asked."""
        super().__init__(400, message, **more)
        self.missing = tuple(missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """What is sent to the engine, and what is published of it."""

    ids: Ids
    node: Node
    """The place in the history that the messages reach."""
    rest: tuple[Message, ...]
    """Those from there on."""
    base: RecordedTurn | None
    kept_messages: int
    """Along the base's prompt messages, then its answer."""
    kept_ids: int
    """Along the base's prompt, then its output."""
    built: Built
    prefill: Prefill | None
    """Set if the last message is an answer: whether the model goes on in it or behind it."""
    prompt_digest: bytes
    tools_digest: str | None
    foreign: tuple[int, ...]
    """The request's assistant messages that no turn is known for."""
    missing: tuple[str, ...]
    """Turns of ours that those name: they are recorded, but were not known here."""
    part: Part | None = None
    """What the client kept of the base's answer, if not all of it."""
    lent: tuple[str, ...] = ()
    """Turns whose tokens stand in the prompt as context, elsewhere than they were sampled."""

    @property
    def base_turn_id(self) -> str | None:
        return self.base.turn_id if self.base else None

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them, answers in the form that was recorded."""
        return self._messages(0)

    @property
    def suffix_messages(self) -> tuple[Message, ...]:
        """Those that the base does not have."""
        return self._messages(self.kept_messages)

    def _messages(self, after: int) -> tuple[Message, ...]:
        return (*(node.message or {} for node in self.node.path(after)), *self.rest)

    @property
    def suffix_ids(self) -> Ids:
        return self.ids[self.kept_ids :]

    def published(self) -> "BuiltPrompt":
        """The same on the deepest base that the log has; without one it stands by itself."""
        base, messages, ids = acknowledged(self.base, self.kept_messages, self.kept_ids)
        if base is self.base:
            return self
        fields = {name: getattr(self, name) for name in self.__slots__}
        return BuiltPrompt(**{**fields, "base": base, "kept_messages": messages, "kept_ids": ids})


@dataclass(frozen=True, slots=True)
class _Start:
    """What a prompt goes on from."""

    base: RecordedTurn
    kept_messages: int
    ids: Ids
    """The first of the base's prompt and output."""
    extra: list[int]
    """What is left of a token that a cut went through."""
    said: int
    """How many messages these ids stand for."""

    @property
    def spoken(self) -> Spoken:
        output = self.ids[self.base.prompt_len :]
        if self.extra:
            output = np.concatenate([output, as_ids(self.extra)])
        return Spoken(self.ids[: self.base.prompt_len], output)


def raw_prompt(prompt: BuiltPrompt, renderer: Renderer, settings: Settings) -> str | None:
    """The prompt as text, if it begins a conversation and is not too long to be kept."""
    bytes_max = settings.gateway_raw_prompt_bytes_max
    if prompt.base is not None or prompt.lent or prompt.ids.size > bytes_max:
        return None
    text = renderer.decode(prompt.ids)
    return text if len(text.encode(errors="replace")) <= bytes_max else None


def tools_digest(tools: Sequence[Tool]) -> str | None:
    """The digest of a tool list, in its order; None without tools."""
    if not tools:
        return None
    return blake2b(_TOOLS_TEXT(list(tools)), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What is left to be rendered: it reads nothing of the history, so a thread may do it."""

    renderer: Renderer
    start: _Start | None
    items: Sequence[Item]
    tools: Sequence[Tool]

    def compose(self, window_tokens: int | None = None) -> Composed | None:
        """The ids that follow the start; None if they cannot be rendered behind it.

        Raises:
            CallRefused: the chat template refuses the messages.
            ContextOverflow: their text is far beyond the window.
        """
        try:
            with encoding_at_most(window_tokens):
                if self.start is None:
                    return _anew(self.renderer, self.items, self.tools)
                return compose(self.renderer, self.start.spoken, self.items, self.tools)
        except BeyondLimit as error:
            raise ContextOverflow(error.tokens, error.limit) from error
        except RenderFailed as error:
            raise CallRefused(400, str(error), param="messages") from error

    @property
    def is_long(self) -> bool:
        """Whether the event loop would stand still for more than some ten milliseconds."""
        messages = [item.message for item in self.items if item.output is None]
        tools = self.tools if self.start is None or self.renderer.repeats_tools else ()
        rest = _LONG - len(self.items) * _EACH_MESSAGE
        return exceeds((messages, tools), rest, each=_EACH_VALUE)


class Building:
    """A prompt under way: what it goes on from is known, what is new is not rendered yet."""

    def __init__(self, call: Call, history: History, renderer: Renderer) -> None:
        """Look up what is recorded.

        Raises:
            NotGiven: the call goes on from an answer that is not known here.
        """
        self._call, self._history, self._renderer = call, history, renderer
        self._digest = tools_digest(call.tools)
        self._match = _matched(call, history, self._digest)
        self._items: Items

    @property
    def foreign(self) -> tuple[int, ...]:
        """The request's assistant messages that no turn is known for."""
        return self._match.foreign

    @property
    def missing(self) -> tuple[str, ...]:
        """Turns of ours that those name."""
        return self._match.missing

    def again(self) -> BuiltPrompt | None:
        """The prompt of a request that was answered before; None if it is a new one."""
        twin = self._match.twin
        return None if twin is None else _again(self._match, twin, self._history, self._renderer)

    def renderings(self) -> Iterator[Rendering]:
        """What to render behind the recorded tokens, and then all of it, if that cannot be done."""
        items = Items(self._match, self._history, self._renderer, self._call.callable_tools)
        self._items = items
        start = _start(self._match, self._history, items, self._digest)
        if start is not None:
            yield self._rendering(start, items.after(start.said))
        yield self._rendering(None, items.after(0))

    def _rendering(self, start: _Start | None, items: Sequence[Item]) -> Rendering:
        return Rendering(renderer=self._renderer, start=start, items=items, tools=self._call.tools)

    def prompt(self, rendering: Rendering, composed: Composed) -> BuiltPrompt:
        """The whole of it."""
        start, match, items = rendering.start, self._match, self._items
        built: Built = composed.how if start else "render"
        ids, prompt_digest = _joined(start, composed.ids)
        return BuiltPrompt(
            ids=ids,
            node=match.node,
            rest=items.rest,
            base=start.base if start else None,
            kept_messages=start.kept_messages if start else 0,
            kept_ids=len(start.ids) if start else 0,
            built="suffix" if start and start.extra and built == "reuse" else built,
            prefill=composed.prefill,
            prompt_digest=prompt_digest,
            tools_digest=self._digest,
            foreign=match.foreign,
            missing=match.missing,
            part=_part(match, items) if start else None,
            lent=tuple(items.lent),
        )


def build(call: Call, history: History, renderer: Renderer) -> BuiltPrompt:
    """The prompt of a call, in one go.

    Raises:
        CallRefused: the chat template refuses the messages.
        NotGiven: the call goes on from an answer that is not known here.
    """
    building = Building(call, history, renderer)
    prompt = building.again()
    if prompt is not None:
        return prompt
    for rendering in building.renderings():
        composed = rendering.compose()
        if composed is not None:
            return building.prompt(rendering, composed)
    raise AssertionError("a whole prompt is rendered or refused")


def _matched(call: Call, history: History, digest: str | None) -> Match:
    """How far a call goes along with what is recorded.

    One that sends only what is new says its head again. If it is the one that stands there,
    nothing is new in it; another takes its place, and what follows it is context.
    """
    previous, named = _previous(call, history), history.named(call.carriers)
    messages = _sent(call, history, named)
    head, new = messages[: call.head], messages[call.head :]
    if previous is None or not head:
        return history.find(messages, digest, after=previous, named=named)
    path = (previous.node or previous.place).path()
    old = path[:1] if (path[0].message or {}).get("role") == "system" else []
    if [node.message for node in old] == head:
        named = {at - len(head): names for at, names in named.items()}
        return history.find(new, digest, after=previous, named=named)
    between = path[len(old) :]
    known = {len(head) + at: (node.turn.turn_id,) for at, node in enumerate(between) if node.turn}
    named = known | {at + len(between): names for at, names in named.items()}
    whole = [*head, *(node.message or {} for node in between), *new]
    return history.find(whole, digest, named=named)


def _sent(call: Call, history: History, named: Named) -> list[Message]:
    """The messages of a call; those that it only names, as they were recorded."""
    messages = list(call.messages)
    for at in call.references:
        turn = history.turn_of(messages[at], named.get(at, ()))
        if turn is None or turn.node is None or turn.node.message is None:
            raise NotGiven(
                "an item is named that was not given in this session: send the item itself",
                [name for name in named.get(at, ()) if name not in history.turns],
                param="input",
            )
        messages[at] = turn.node.message
    return messages


def _previous(call: Call, history: History) -> RecordedTurn | None:
    if call.previous_id is None:
        return None
    name = history.recognise(call.previous_id)
    turn = history.turns.get(name or "")
    if turn is None:
        raise NotGiven(
            f"the answer {call.previous_id!r:.80} was not given in this session: "
            "send the whole conversation",
            [name] if name else [],
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return turn


def _part(match: Match, items: Items) -> Part | None:
    if match.kept is None or items.cut is None:
        return None
    length, rest = items.cut
    return Part(length, tuple(rest), match.kept.cut.message)


def _again(match: Match, twin: RecordedTurn, history: History, renderer: Renderer) -> BuiltPrompt:
    """The prompt of a request that was answered before."""
    prefill: Prefill | None = None
    if twin.goes_on:
        begun = twin.place.turn
        ended = begun is not None and renderer.has_end(history.output(begun))
        prefill = "closed" if ended else "continued"
    return BuiltPrompt(
        ids=history.ids(twin, twin.prompt_len),
        node=match.node,
        rest=(),
        base=twin.base,
        kept_messages=twin.kept_messages,
        kept_ids=twin.kept_ids,
        built="reuse",
        prefill=prefill,
        prompt_digest=twin.prompt_sums[0].copy().digest(),
        tools_digest=twin.tools_digest,
        foreign=match.foreign,
        missing=match.missing,
    )


def _start(match: Match, history: History, items: Items, digest: str | None) -> _Start | None:
    turn = match.kept.turn if match.kept else None
    if turn is not None and items.cut is not None and turn.tools_digest == digest:
        kept, extra = items.cut
        ids = history.ids(turn, turn.prompt_len + kept)
        return _Start(turn, turn.place.depth, ids, extra, turn.place.depth + 1)
    base = match.base
    if base is None or base.node is None:
        return None
    return _Start(base, base.node.depth, history.ids(base, base.end), [], base.node.depth)


def _anew(renderer: Renderer, items: Sequence[Item], tools: Sequence[Tool]) -> Composed:
    composed = compose(renderer, None, items, tools) if renderer.composes else None
    if composed is None:
        messages = [item.message for item in items]
        prefill: Prefill | None = "continued" if messages[-1]["role"] == "assistant" else None
        composed = Composed(renderer.whole(messages, tools), "reuse", prefill)
    return composed


def _joined(start: _Start | None, new: list[int]) -> tuple[Ids, bytes]:
    """All ids and their digest; what was recorded is checked to be what it was."""
    hashed, checked = sums(start.base if start else None, len(start.ids) if start else 0)
    suffix = as_ids(start.extra + new if start else new)
    hashed.update(suffix)
    ids = suffix
    if start is not None:
        if crc32(start.ids.data) != checked:
            raise AssertionError(f"the ids of turn {start.base.turn_id} are not what they were")
        ids = np.concatenate([start.ids, suffix])
    ids.flags.writeable = False
    return ids, hashed.digest()
