"""One session of an agent at prompt building: requests in, prompts out, answers recorded.

The tokenizer and the template are Qwen3's own. An answer is what the test says was sampled, and
is recorded as the gateway does it: as the event that is published.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.record import NOT_GIVEN, Ids, Octets, json_text
from streams.adapters.dialects.calls import Call, Message, Tool
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.history.tree import RecordedTurn
from streams.adapters.gateway.prompts.building import BuiltPrompt, build
from streams.adapters.gateway.rendering.renderer import Renderer
from tests.drift import qwen3

STOP = qwen3.STOP
IM_END = 151645


@functools.cache
def renderer(*, thinking: bool = True, family: str = "auto") -> Renderer:
    options = {} if thinking else {"enable_thinking": False}
    return Renderer(qwen3.tokenizer_folder(), family=family, options=options)


def with_template(path: Path, text: str, family: str = "none") -> Renderer:
    """A renderer with the same tokenizer and another template."""
    path.write_text(text, encoding="utf-8")
    return Renderer(qwen3.tokenizer_folder(), template=path, family=family)


@functools.cache
def stock() -> qwen3.Qwen3:
    """What re-renders everything, every time."""
    return qwen3.load()


def sampled(text: str) -> list[int]:
    """Ids that a model may have sampled for a text, the control tokens in it included."""
    return stock().encode(text)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def said(content: str, reasoning: str = "", *calls: dict[str, Any]) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(identity: str, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def result(identity: str, content: str = "148M\t.") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": identity, "name": "bash"}


def minted(identity: str) -> str | None:
    """The turn that an id of this setting names: `t1.0` is the first call of t1."""
    turn, dot, number = identity.partition(".")
    return turn if dot and number.isdigit() else None


@dataclass
class Session:
    renderer: Renderer = field(default_factory=renderer)
    tools: tuple[Tool, ...] = ()
    history: History = field(default_factory=lambda: History(recognise=minted))
    acknowledges: bool = True
    events: list[Turn] = field(default_factory=list)
    """As they are published."""

    def build(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, **fields: Any
    ) -> BuiltPrompt:
        asked = tuple(self.tools if tools is None else tools)
        request = Call(model="m", messages=tuple(messages), tools=asked, **fields)
        built = build(request, self.history, self.renderer)
        assert_sound(built, self.history)
        return built

    def answer(
        self,
        built: BuiltPrompt,
        output: str | Iterable[int],
        message: Message | None,
        *,
        prev: int | None = None,
    ) -> RecordedTurn:
        """Record what was sampled from a prompt, as turn t1, t2, ... at 1, 2, ...

        It was asked when the log had all before it, or all up to `prev`.
        """
        ids = sampled(output) if isinstance(output, str) else list(output)
        turn_id = f"t{len(self.events) + 1}"
        self.events.append(turn_event(built.published(), turn_id, ids, message))
        position = len(self.events) if self.acknowledges else None
        asked_after = len(self.events) - 1 if prev is None else prev
        event = msgspec.structs.replace(turn_event(built, turn_id, ids, message), prev=asked_after)
        return self.history.record(event, position=position)

    def turn(
        self,
        messages: Sequence[Message],
        output: str | Iterable[int],
        message: Message | None,
        **fields: Any,
    ) -> RecordedTurn:
        return self.answer(self.build(messages, **fields), output, message)

    def said_by(self, turn: RecordedTurn) -> list[int]:
        """All ids of a turn: its prompt and what was sampled from it."""
        ids: list[int] = self.history.ids(turn, turn.end).tolist()
        return ids


def turn_event(
    built: BuiltPrompt, turn_id: str, output: Sequence[int], message: Message | None
) -> Turn:
    return Turn(
        session_id="s",
        turn_id=turn_id,
        prompt_messages=tuple(json_text(message) for message in built.suffix_messages),
        prompt_ids=built.suffix_ids,
        output_ids=ids_of(output),
        response_message=NOT_GIVEN if message is None else json_text(message),
        base_turn_id=built.base_turn_id,
        kept_messages=built.kept_messages if built.base else None,
        kept_ids=built.kept_ids if built.base else None,
        prompt_digest=Octets(built.prompt_digest),
        tools_digest=built.tools_digest,
    )


def ids_of(ids: Iterable[int]) -> Ids:
    return np.fromiter(ids, np.int32)


def assert_sound(built: BuiltPrompt, history: History) -> None:
    """What every prompt promises, checked the slow way."""
    whole = blake2b(digest_size=16)
    whole.update(built.ids.astype("<i4").tobytes())
    assert built.prompt_digest == whole.digest()
    if built.base is None:
        assert (built.kept_ids, built.kept_messages) == (0, 0)
        return
    assert built.ids[: built.kept_ids].tolist() == history.ids(built.base, built.kept_ids).tolist()
    node = built.base.place_at(built.kept_messages)
    assert node is not None
    kept = [place.message for place in node.path()]
    assert kept == list(built.messages[: built.kept_messages])


def extends(built: BuiltPrompt, session: Session, turn: RecordedTurn) -> bool:
    """Whether a prompt begins with everything that a turn saw and sampled."""
    recorded = session.said_by(turn)
    return bool(built.ids[: len(recorded)].tolist() == recorded)


def rerendered_loss(session: Session, turn: RecordedTurn, anew: Sequence[int]) -> int:
    """How many of a turn's tokens are not in a prompt that was rendered anew."""
    recorded = session.said_by(turn)
    pairs = enumerate(zip(recorded, anew, strict=False))
    shared = next((at for at, (old, new) in pairs if old != new), min(len(recorded), len(anew)))
    return len(recorded) - shared
