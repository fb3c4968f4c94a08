"""The gateway is killed in the middle of a client's run, and another process takes its place.

The first answer is one that the client has seen the end of; the second is cut by the kill, in a
thought, of which neither client keeps anything. Its connection breaks, it asks again at the same
address, and there is a gateway that has never seen its session.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence

from streams.adapters.engines.scripted import Rule
from tests.adapters.gateway.world import World
from tests.clients import claude_scenes, codex_scenes
from tests.clients.claude_code import ClaudeCode
from tests.clients.codex import Codex
from tests.clients.installing import Programs
from tests.clients.running import Ran
from tests.clients.scene import Scene, Seen, says
from tests.clients.wire import GATEWAY_GONE, Wire
from tests.failover.processes import GatewayProcess

LONG = "I think about this for a while, and then for a while longer. " * 4
BEGIN_SECONDS_MAX = 45.0


class KilledScene(Scene):
    """One whose gateway dies once; its world and the processes are given before it is played."""

    world: World
    gateway: GatewayProcess
    another: GatewayProcess

    @abstractmethod
    def step(self, word: str) -> Rule:
        """An answer that has a command run."""

    def answers(self) -> Sequence[Rule]:
        return [
            self.step("one"),
            says("Never seen.", thinking=LONG, gap_ms=400.0),
            self.step("two"),
            says("All done.", thinking="It is."),
        ]

    async def survive(self, wire: Wire, asking: "asyncio.Task[Ran]") -> None:
        """Kill the gateway in the second answer; the client has to come to its end."""
        deadline_s = time.monotonic() + BEGIN_SECONDS_MAX
        while not (len(wire.calls) > 1 and len(wire.calls[1].chunks) > 1):
            assert time.monotonic() < deadline_s, "the second answer does not begin"
            await asyncio.sleep(0.05)
        wire.gateway_url = self.world.gateway.base_url = self.another.url
        self.gateway.kill()
        (await asking).assert_ok()

    def check(self, seen: Seen) -> None:
        first, cut, *_ = seen.wire.calls
        assert (first.ended, cut.ended, cut.fault) == (True, False, GATEWAY_GONE)
        again = [one for one in seen.wire.calls if one.ended]
        assert again[1].request == cut.request
        assert seen.attached == ["root", "extend", "extend"]
        assert len(seen.outcome.samples) == 1
        one, two, three = seen.outcome.turns.values()
        assert one.source != two.source == three.source
        assert two.base_turn_id == one.turn_id
        whole = len(seen.outcome.prompts[one.turn_id]) + len(one.output_ids)
        assert two.kept_ids == whole


class ClaudeKilled(KilledScene):
    """Claude Code."""

    client = "Claude Code"

    def step(self, word: str) -> Rule:
        return says("", claude_scenes.bash(f"echo {word}"), thinking=f"{word}.")

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        agent = ClaudeCode(programs.claude, self.folder, wire, key)
        await self.survive(wire, asyncio.create_task(agent.ask("Do the task.")))


class CodexKilled(KilledScene):
    """Codex."""

    client = "Codex"

    def step(self, word: str) -> Rule:
        return says("", codex_scenes.run(f"echo {word}"), thinking=f"{word}.")

    async def play(self, programs: Programs, wire: Wire, key: str) -> None:
        agent = Codex(programs.codex, self.folder, wire, key)
        await self.survive(wire, asyncio.create_task(agent.ask("Do the task.")))


SCENES = (ClaudeKilled, CodexKilled)
