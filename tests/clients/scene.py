"""A scene: one session of a real client, the answers it gets, and what must come of it.

    scene.answers ──► the engine's script, for this session alone
    scene.play    ──► the client's processes, through the recorder, to the gateway
    scene.check   ──► what the wire shows of the client, what the log became of it

Invariant: a scene's rules answer no session but its own, so scenes are played at once.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from streams.adapters.engines.scripted import Rule
from streams.adapters.engines.scripted.script import END_TOKEN
from streams.adapters.gateway.access.minted import Minter
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.world import REWARD, SECRETS, World
from tests.clients.installing import Programs
from tests.clients.wire import Exchange, Fault, Wire


@dataclass(frozen=True)
class Seen:
    """A scene that was played."""

    wire: Wire
    outcome: Outcome
    minter: Minter
    call_end: int | None
    """The token that ends a tool call."""
    turn_end: int | None
    """The token that ends an answer."""

    def turn_of(self, exchange: Exchange) -> str | None:
        """The turn that answered; None if none did."""
        found = self.minter.find(exchange.response.decode("utf-8", "replace"))
        return found[0].turn_id if exchange.status == 200 and found else None

    def named_in(self, exchange: Exchange) -> set[str]:
        """The turns of which something stands in the request."""
        return {minted.turn_id for minted in self.minter.find(exchange.body.decode())}

    def wholes(self) -> dict[str, str]:
        """Each turn of the log, and the one that it is a part of, which may be itself.

        What a client kept of a broken answer stands in the log as a turn of its own.
        """
        return {name: turn.part_of or name for name, turn in self.outcome.turns.items()}

    @property
    def attached(self) -> list[str]:
        return self.outcome.attached

    def classes(self) -> list[str | None]:
        """How each turn of the log is classed, in its order."""
        return [turn.request_class for turn in self.outcome.turns.values()]


class Scene(ABC):
    """What a client does in one session."""

    client: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        """Its home and work folder lie below the folder."""
        self.folder = folder / type(self).__name__
        self.session_id = f"{type(self).__name__}-{uuid.uuid4().hex[:8]}"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @abstractmethod
    def answers(self) -> Sequence[Rule]:
        """What the model says, in order."""

    @abstractmethod
    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        """Let the client do it."""

    @abstractmethod
    def check(self, seen: Seen) -> None:
        """The client did what the scene is about, and it became what it should."""

    def rules(self) -> list[Rule]:
        """The answers, for this session alone."""
        key = self.session_id
        return [msgspec.structs.replace(rule, routing_key=key) for rule in self.answers()]


async def perform(scene: Scene, world: World, programs: Programs) -> Seen:
    """Open the session, play it, end it, look at it."""
    status, opened = await world.control("sessions", {"session_id": scene.session_id})
    assert status == 200, opened
    wire = Wire(world.gateway.base_url)
    try:
        await scene.play(programs, wire, opened["key"])
    except AssertionError as error:
        raise AssertionError(f"{scene.session_id}: {error}\n{_told(wire)}") from error
    status, ended = await world.control(f"sessions/{scene.session_id}/end", {"reward": REWARD})
    assert status == 200, ended
    ends = [world.renderer.backend.token_to_id(text) for text in ("</tool_call>", END_TOKEN)]
    seen = Seen(wire, await world.outcome(scene.session_id), Minter(SECRETS), *ends)
    scene.check(seen)
    return seen


def says(text: str, *calls: Mapping[str, Any], thinking: str | None = None, **more: Any) -> Rule:
    """An answer of the model."""
    message: dict[str, Any] = {"content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [{"function": dict(call)} for call in calls]
    return Rule(message=message, chunks=(8,), **more)


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


def refusals() -> list[Fault]:
    """Each once, from the second request on."""
    error = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "Not now."}
    body = {"type": "error", "error": error}
    return [
        Fault(on=lambda one: one.number > 0, status=status, body=body, headers={"retry-after": "1"})
        for status in (429, 503)
    ]


def _told(wire: Wire) -> str:
    """What went over the wire, in short."""
    lines = []
    for one in wire.exchanges:
        lines.append(f"{one.number} {one.path} {one.status} {one.fault or ''}")
        lines.append(f"   ... {one.response[-400:]!r}")
    return "\n".join(lines)
