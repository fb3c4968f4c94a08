"""Echo torture in an API's own form: an answer is sent back as some client would, and gone on.

A row is an answer as the engine samples it and what a client makes of its history before the next
request. Beside it stands how many of the turn's tokens a gateway would lose that renders the
returned form anew with the stock template.

Invariant: whatever the change, the next prompt begins with the recorded tokens, and all train.
"""

import copy
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streams.adapters.dialects.calls import Call
from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.agents import Message, says, user
from tests.adapters.gateway.agents_kinds import Said, Talker, plain
from tests.adapters.gateway.agents_scenes import Scene
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.prompts.prompt_setting import stock
from tests.adapters.gateway.world import World

THOUGHT = "I should measure it."
QUESTION = "How big is it?"
BASH: Message = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
EDIT: Message = {"type": "function", "function": {"name": "Edit", "parameters": {"type": "object"}}}


def thinking(body: str) -> str:
    return f"<think>\n{THOUGHT}\n</think>\n\n{body}"


def calling(*arguments: str, name: str = "bash") -> str:
    made = [f'{{"name": "{name}", "arguments": {text}}}' for text in arguments]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in made)


BASH_CALL = thinking(calling('{"description": "Size", "timeout": 5000.0, "command": "du -sh ."}'))
EDIT_CALL = thinking(
    calling('{"file_path": "a", "old_string": "x", "new_string": "y  \\n"}', name="Edit")
)
TWO_CALLS = thinking(calling('{"a": 1, "b": 2}', '{"c": 3, "d": 4}'))
TEXT = thinking("It is 148M.")

Change = Callable[[Talker], None]


@dataclass(frozen=True)
class Echo:
    sampled: str
    change: Change
    """What the client makes of its history."""
    lost: int
    """By rendering anew."""
    tools: Sequence[Message] = (BASH, EDIT)
    backwards: bool = False
    """Results in the other order."""
    question: Message = field(default_factory=lambda: user(QUESTION))
    """In the API's own form."""
    first: Change = lambda _: None
    """What it does before its first request."""
    rule: Mapping[str, Any] = field(default_factory=dict)
    """More of how the answer comes."""


def scenes(
    kind: str, echoes: Mapping[str, Echo], read: Callable[[bytes], Call]
) -> dict[str, Scene]:
    """Each row in one piece and streamed."""
    return {
        f"{name}-{'stream' if stream else 'whole'}": Scene(
            _play(echo, read), [Rule(text=echo.sampled, **echo.rule), says("Thanks.")], kind, stream
        )
        for name, echo in echoes.items()
        for stream in (False, True)
    }


def _play(echo: Echo, read: Callable[[bytes], Call]) -> Callable[[World, Talker], Awaitable[None]]:
    async def story(world: World, talker: Talker) -> None:
        talker.tools = list(echo.tools)
        echo.first(talker)
        said = await talker.ask(echo.question)
        talker.history = [[plain(part) for part in group] for group in talker.history]
        echo.change(talker)
        await go_on(talker, said, backwards=echo.backwards)
        outcome = await world.ends_whole(talker.agent)
        assert outcome.attached == ["root", "extend"]
        assert len(outcome.samples) == 1
        whole = assert_extended(outcome)
        body = json.dumps(talker.body([part for group in talker.history[:-1] for part in group]))
        gone = lost(whole, read(body.encode()))
        assert gone == echo.lost, f"rendered anew, {gone} tokens are lost"

    return story


async def go_on(talker: Talker, said: Said, *, backwards: bool = False) -> Said:
    """Answer the calls, or ask on."""
    if said.calls:
        return await talker.run_tools(said, backwards=backwards)
    return await talker.ask(user("And the tests?"))


def assert_extended(outcome: Outcome) -> list[int]:
    """The second prompt begins with all that the first turn saw and sampled."""
    first, second = outcome.turns.values()
    whole: list[int] = outcome.prompts[first.turn_id] + first.output_ids.tolist()
    assert outcome.prompts[second.turn_id][: len(whole)] == whole
    return whole


def lost(whole: list[int], call: Call) -> int:
    """How many of a turn's tokens are not in the next prompt as the stock template writes it."""
    anew = stock().render(copy.deepcopy(list(call.messages)), list(call.tools))
    pairs = enumerate(zip(whole, anew, strict=False))
    shared = next((n for n, (old, new) in pairs if old != new), min(len(whole), len(anew)))
    return len(whole) - shared
