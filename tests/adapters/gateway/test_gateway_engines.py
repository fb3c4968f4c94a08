"""Conversations through the gateway with SGLang and vLLM in place of the script."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from streams.adapters.engines.over_http import HttpEngine
from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.adapters.gateway.server import Gateway
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import Settings
from tests.adapters.engines.standins.kinds import EACH, Kind
from tests.adapters.engines.standins.serving import StandIn, standing
from tests.adapters.gateway.agents import BASH, calls, says, system, user
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import SECONDS_MAX, SECRETS, Story, World, served

OPENING = (system("You are terse."), user("How big is it?"))
LOOP = [calls(f"du -sh {n}", text="Let me look.", reasoning=f"Step {n}.") for n in range(3)]


class WorldOverHttp(World):
    """A world whose gateway asks a server, behind which the script is played."""

    def __init__(
        self, settings: Settings, log: Faulty, engine: ScriptedEngine, asked: HttpEngine
    ) -> None:
        self.asked_engine = asked
        super().__init__(settings, log, engine)

    def _new_gateway(self) -> Gateway:
        return Gateway(self.settings, self.log, self.asked_engine, self.renderer, SECRETS)


@EACH
def test_a_restarted_engine_has_not_the_version_that_was_declared(
    tmp_path: Path, kind: Kind
) -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(2 * SECONDS_MAX),
            world(tmp_path, kind, [says("One."), says("Two."), says("Three.")], 1) as (at, servers),
        ):
            agent = await at.open()
            (server,) = servers
            server.faults.no_version = True  # the label is `default`
            await agent.ask(*OPENING)
            await at.control("resume", {"version": 7})
            await agent.ask(user("And now?"))
            server.faults.no_version = False
            at.engine.update_weights(8)
            await at.control("resume", {"version": 8})
            await agent.ask(user("And now?"))
            outcome = await at.ends_whole(agent)
            turns = list(outcome.turns.values())
            counts = [len(turn.output_ids) for turn in turns]
            assert [turn.weight_versions for turn in turns] == [
                None,  # nothing was declared or reported by then
                [(-1, counts[1])],
                [(8, counts[2])],
            ]
            assert [turn.weight_label for turn in turns] == ["default", "default", "8"]
            (sample,) = outcome.samples
            runs = sample.weight_versions or []
            assert [(version, end - start) for version, start, end in runs] == list(
                zip((-1, -1, 8), counts, strict=True)
            )

    asyncio.run(story())


@contextlib.asynccontextmanager
async def world(
    folder: Path, kind: Kind, script: Sequence[Rule], replicas: int
) -> AsyncIterator[tuple[WorldOverHttp, list[StandIn]]]:
    settings = Settings(log=str(folder / "log.db"), gateway_port=0, gateway_drain_timeout_s=5.0)
    engine = ScriptedEngine(Script(answers=tuple(script)), renderer().backend)
    servers = [kind.server(engine) for _ in range(replicas)]
    stop = asyncio.Event()
    async with standing(*servers) as urls, SqliteLog(folder / "log.db", settings) as log:
        asked = kind.engine(urls)
        processing = asyncio.create_task(EmbeddedProcessor(settings, log).run(stop))
        made = WorldOverHttp(settings, Faulty(log), engine, asked)
        try:
            async with served(made):
                yield made, servers
        finally:
            stop.set()
            await processing
            await asked.close()


def play(folder: Path, kind: Kind, story: Story, script: Sequence[Rule], replicas: int = 1) -> None:
    async def whole() -> None:
        async with (
            asyncio.timeout(2 * SECONDS_MAX),
            world(folder, kind, script, replicas) as (made, servers),
        ):
            await story(made)
            assert sum(bool(server.bodies) for server in servers) == 1

    asyncio.run(whole())


@EACH
def test_a_tool_loop_is_one_sample(tmp_path: Path, kind: Kind) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream, agent.tools = True, [BASH]
        answer = await agent.ask(*OPENING)
        for _ in range(3):
            answer = await agent.run_tools(answer)
        assert answer["content"] == "Done."
        outcome = await world.ends_whole(agent)
        assert outcome.attached == ["root", "extend", "extend", "extend"]
        assert len(outcome.samples) == 1
        for turn in outcome.turns.values():
            assert turn.weight_versions == [(0, len(turn.output_ids))]

    play(tmp_path, kind, story, [*LOOP, says("Done.", "Enough.")], replicas=3)


@EACH
def test_weights_that_change_in_the_middle_of_an_answer_leave_one_turn(
    tmp_path: Path, kind: Kind
) -> None:
    async def story(world: World) -> None:
        agent = await world.open()
        agent.stream = True
        asking = asyncio.create_task(agent.ask(*OPENING))
        await world.asked()
        await asyncio.sleep(0.2)
        world.engine.update_weights(1)
        answer = await asking
        assert answer["content"] == "one two three four five six seven eight nine ten."
        outcome = await world.end(agent)
        (turn,) = outcome.turns.values()
        assert turn.weight_versions is not None
        assert [version for version, _ in turn.weight_versions] == [0, 1]
        assert sum(count for _, count in turn.weight_versions) == len(turn.output_ids)
        sampled = [entry for entry in world.engine.journal if entry.ids]
        assert [token for entry in sampled for token in entry.ids] == turn.output_ids.tolist()

    slow = Rule(text="one two three four five six seven eight nine ten.", gap_ms=50)
    play(tmp_path, kind, story, [slow])
