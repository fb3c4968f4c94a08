"""The verdicts on a group, on a real broker: each session gets its own, or nobody gets any."""

import asyncio
import dataclasses
import random
from pathlib import Path

import pytest

from schemas.events import Reward
from streams.adapters.client import AsyncSession, Turnstream
from streams.settings import Settings
from tests.kafka.test_gateway import world
from tests.kafka.test_processor import worker

SIZE = 8


async def group_of(client: Turnstream, chance: random.Random) -> list[AsyncSession]:
    """A group whose sessions have ended, in no order."""
    openings = [
        client.session(session_id=f"verdict-{n}", group_id="g", group_size=SIZE, rollout_index=n)
        for n in range(SIZE)
    ]
    sessions = [await opening.__aenter__() for opening in openings]
    for session in chance.sample(sessions, SIZE):
        await session.end("completed")
    return sessions


def test_a_groups_verdicts_reach_the_sessions_that_they_name_or_nobody(
    settings: Settings, tmp_path: Path
) -> None:
    given = dataclasses.replace(settings, metrics_port=0)
    chance = random.Random(4)

    async def story() -> None:
        async with world(given) as made:
            client = Turnstream(made.gateway.base_url, made.gateway.keys.control_key)
            sessions = await group_of(client, chance)
            worth = {each.session_id: float(at) for at, each in enumerate(sessions)}
            partitions = await made.log.end_positions(given.turns_topic)
            assert sum(end > 0 for end in partitions.values()) > 1
            wrong = {
                "verdict-3: without a verdict": {**worth},
                "else: not of this group": {**worth, "else": 1.0},
                "session verdict-5: reward nan": {**worth, "verdict-5": float("nan")},
            }
            del wrong["verdict-3: without a verdict"]["verdict-3"]
            for words, verdicts in wrong.items():
                with pytest.raises(ValueError, match=f"{words}.*nothing was sent"):
                    await client.rewards_async(verdicts, of=sessions)
            with pytest.raises(
                ValueError, match="8 verdicts for 9 sessions; verdict-0: named twice"
            ):
                await client.rewards_async(worth, of=[*sessions, sessions[0]])
            rewards = await made.records(given.turns_topic)
            assert not [event for event in rewards if isinstance(event, Reward)]
            for _ in range(2):  # a second time changes nothing
                shuffled = dict(chance.sample(list(worth.items()), SIZE))
                await client.rewards_async(shuffled, of=chance.sample(sessions, SIZE))
            for name, value in worth.items():
                assert (await made.outcome(name)).closed.reward == value

    with worker(given, tmp_path / "worker.log"):
        asyncio.run(story())
