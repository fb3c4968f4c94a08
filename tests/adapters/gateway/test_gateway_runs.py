"""Several runs in one deployment: side by side through one gateway and one processor, unmixed."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from schemas.samples import Sample, SessionClosed
from streams.processor.counting import OTHER_RUNS
from streams.processor.health import Progress, WorkerMetrics
from tests.adapters.gateway.agents import BASH, Agent, calls, says, user
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.world import World, played
from tests.cli.command import turnstream

RUNS: dict[str, dict[str, Any]] = {
    "run:a": {"sampling": {"temperature": 0.5}, "budgets": {"turns": 3}, "policy": "lossless"},
    "run-b": {"sampling": {"temperature": 1.5}, "budgets": {"turns": 2}, "policy": "seed"},
}
SESSIONS = 4


async def opened(world: World, run_id: str, number: int) -> Agent:
    """Both runs use the same tasks, groups and places in them."""
    return await world.open(
        session_id=f"{run_id}.{number}",
        run_id=run_id,
        task_id="task",
        group_id="task-7",
        group_size=SESSIONS,
        rollout_index=number,
        metadata={"of": run_id},
        **RUNS[run_id],
    )


async def used_up(agent: Agent, run_id: str) -> None:
    """All the turns that the run gives its sessions, and one more."""
    agent.tools = [BASH]
    answer = await agent.ask(user(f"This is {run_id}"), temperature=0.9)
    for _ in range(RUNS[run_id]["budgets"]["turns"] - 1):
        answer = await agent.run_tools(answer, run_id)
    with pytest.raises(openai.APIStatusError) as caught:
        await agent.run_tools(answer)
    assert caught.value.code == "turn_limit"


def assert_unmixed(run_id: str, outcomes: Sequence[Outcome]) -> None:
    asked = RUNS[run_id]
    for outcome in outcomes:
        closed = outcome.closed
        assert (closed.run_id, closed.group_id) == (run_id, "task-7")
        assert json.loads(bytes(closed.metadata)) == {"of": run_id}
        assert len(outcome.turns) == asked["budgets"]["turns"]
        for turn in outcome.turns.values():
            assert turn.sampling is not None
            assert turn.sampling.temperature == asked["sampling"]["temperature"]
        for sample in outcome.samples:
            assert (sample.run_id, sample.policy) == (run_id, asked["policy"])


@played(otherwise=calls("ls"))
async def test_two_runs_side_by_side_do_not_mix(world: World) -> None:
    agents = {run: [await opened(world, run, number) for number in range(SESSIONS)] for run in RUNS}
    pairs = [(run, agent) for run, several in agents.items() for agent in several]
    await asyncio.gather(*(used_up(agent, run) for run, agent in pairs))
    ended = await asyncio.gather(*(world.ends_whole(agent) for _, agent in pairs))
    by_run = {
        run: [o for (its, _), o in zip(pairs, ended, strict=True) if its == run] for run in RUNS
    }
    for run, outcomes in by_run.items():
        assert_unmixed(run, outcomes)

    told = world.gateway.pages.metrics().decode()
    for run, outcomes in by_run.items():
        turns = SESSIONS * RUNS[run]["budgets"]["turns"]
        sampled = sum(outcome.closed.generated for outcome in outcomes)
        for name, value in (
            ("sessions_opened", SESSIONS),
            ("sessions_ended", SESSIONS),
            ("turns", turns),
            ("tokens_sampled", sampled),
        ):
            line = f'turnstream_gateway_run_{name}_total{{run="{run}"}} {value:.1f}'
            assert line in told, line
    for run in RUNS:
        exported = await asyncio.to_thread(
            turnstream, "export", "sessions", "--log", world.settings.log, "--run", run
        )
        found = {json.loads(line)["run_id"] for line in exported.out.splitlines()}
        assert (len(exported.out.splitlines()), found) == (SESSIONS, {run})


@played(otherwise=says("Yes."))
async def test_a_session_of_one_run_cannot_be_opened_again_as_one_of_another(world: World) -> None:
    agent = await world.open(session_id="one", run_id="a")
    status, told = await world.control("sessions", {"session_id": "one", "run_id": "b"})
    assert (status, "in use" in told["error"]) == (409, True)
    await agent.ask(user("Hi"))
    status, told = await world.control("sessions/one/end", {"reward": 1, "run_id": "b"})
    assert (status, "run_id" in told["error"]) == (400, True)
    outcome = await world.ends_whole(agent)
    assert outcome.closed.run_id == "a"


@played(otherwise=says("Yes."))
async def test_a_processor_counts_each_run_by_itself(world: World) -> None:
    for run in ("a", "b", "b", None):
        agent = await world.open(run_id=run)
        await agent.ask(user("Hi"))
        await world.ends_whole(agent)
    records = await world.records(world.settings.samples_topic)
    assert sum(isinstance(record, SessionClosed) for record in records) == 4
    generated = {r.run_id: r.generated for r in records if isinstance(r, Sample)}
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(world.counts, lambda: Progress(1, 0, 0, 0, True, None)))
    told = generate_latest(registry).decode()
    for run, sessions in (("a", 1), ("b", 2), ("", 1)):
        assert f'turnstream_run_sessions_closed_total{{run="{run}"}} {sessions:.1f}' in told
        tokens = sessions * generated[run or None]
        assert f'turnstream_run_tokens_trained_total{{run="{run}"}} {tokens:.1f}' in told


@played(otherwise=says("Yes."))
async def test_runs_without_end_do_not_make_metrics_without_end(world: World) -> None:
    for number in range(120):
        world.gateway.metrics.count_run(f"run-{number}", "turns")
        world.counts[f"run_sessions_closed:run-{number}"] += number < 100
    counted = [name for name in world.gateway.metrics.counts if name.startswith("run_turns:")]
    assert len(counted) == 101
    assert world.gateway.metrics.counts[f"run_turns:{OTHER_RUNS}"] == 20
    agent = await world.open(run_id="one-more")
    await agent.ask(user("Hi"))
    await world.ends_whole(agent)
    assert world.counts[f"run_sessions_closed:{OTHER_RUNS}"] == 1
