"""New sessions wait while the trainer is too far behind; nothing else does."""

import asyncio
import time
from typing import Any

import pytest

from streams.adapters.client import GatewayAway, Turnstream
from streams.adapters.gateway.access import admission
from streams.adapters.gateway.access.admission import RETRY_AFTER_S
from streams.settings import Settings
from tests.adapters.gateway.agents import says, user
from tests.adapters.gateway.world import World, played, until

GROUP = "the-trainer"
SAYS = says("Yes.")


async def samples_end(world: World) -> int:
    return (await world.log.end_positions(world.settings.samples_topic)).get(0, 0)


async def read_up_to(world: World, position: int, group: str = GROUP) -> None:
    """The trainer commits, and the last answer of the log is too old to be used again."""
    await world.log.commit(group, world.settings.samples_topic, {0: position})
    world.gateway.admission._looks.clear()


async def closed(world: World, **fields: Any) -> None:
    """One more session: a sample and an outcome on the topic."""
    agent = await world.open(**fields)
    await agent.ask(user("Hi"))
    await world.ends_whole(agent)


async def health(world: World) -> Any:
    return (await world.gateway.pages.healthz())["admission"]


def metrics(world: World) -> str:
    return world.gateway.pages.metrics().decode()


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_a_new_session_waits_until_the_trainer_has_caught_up(world: World) -> None:
    before = await world.open()
    await closed(world)
    await read_up_to(world, 0)
    url, key = world.gateway.base_url, world.gateway.keys.control_key
    async with world.http.post(
        f"{url}/control/sessions", headers={"authorization": f"Bearer {key}"}
    ) as reply:
        told = await reply.json()
        assert reply.status == 429
        assert reply.headers["retry-after"] == str(RETRY_AFTER_S)
    assert told["code"] == "trainer_behind"
    assert "the-trainer is 2 records behind on turnstream.samples" in told["error"]
    assert "TURNSTREAM_ADMISSION_LAG_MAX=1" in told["error"]
    assert world.gateway.metrics.counts["sessions_refused"] == 1
    assert await health(world) == {"lag_max": 1, "groups": {GROUP: {"lag": 2}}}
    assert 'turnstream_gateway_admission_lag{group="the-trainer"} 2.0' in metrics(world)
    # What is open goes on, and can be opened and ended again as before.
    await before.ask(user("Hi"))
    await world.ends_whole(before)
    await read_up_to(world, await samples_end(world) - 1)
    await world.open()


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_the_same_opening_again_is_no_new_session(world: World) -> None:
    await world.open(session_id="once")
    await closed(world)
    await read_up_to(world, 0)
    await world.open(session_id="once")
    status, _ = await world.control("sessions", {"session_id": "twice"})
    assert status == 429
    assert await world.events("twice") == []


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_a_session_that_nobody_trains_on_does_not_wait(world: World) -> None:
    await closed(world)
    await read_up_to(world, 0)
    status, _ = await world.control("sessions", {"split": "train"})
    assert status == 429
    await world.open(split="eval")


@played(otherwise=SAYS, trainer_group=GROUP)
async def test_without_a_limit_nothing_is_asked(world: World) -> None:
    await closed(world)
    await read_up_to(world, 0)
    await world.open()
    assert await health(world) is None
    assert world.gateway.admission._looks == {}


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_a_group_that_is_not_there_holds_nobody_up_and_that_is_told(world: World) -> None:
    await closed(world)
    await closed(world)
    assert world.gateway.metrics.counts["admitted_lag_unknown"] == 2
    told = (await health(world))["groups"][GROUP]
    assert told == {"unknown": "no such group: it never committed"}
    assert 'admission_unknown{group="the-trainer"} 1.0' in metrics(world)


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_a_log_that_cannot_say_holds_nobody_up_and_that_is_told(world: World) -> None:
    await closed(world)
    await read_up_to(world, 0)
    world.log.committed_away = "lost"
    await world.open()
    assert "the test says so" in (await health(world))["groups"][GROUP]["unknown"]
    world.log.committed_away = "silent"
    world.gateway.admission._looks.clear()
    await asyncio.gather(*(world.open() for _ in range(3)))
    assert "did not answer in" in (await health(world))["groups"][GROUP]["unknown"]
    assert world.gateway.metrics.counts["admitted_lag_unknown"] == 1 + 1 + 3


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_the_log_is_asked_once_a_second_at_most_however_many_begin(world: World) -> None:
    await closed(world)
    await read_up_to(world, await samples_end(world))
    asked, began_s = world.log.committed_asked, time.monotonic()
    await asyncio.gather(*(world.open() for _ in range(50)))
    rounds = (time.monotonic() - began_s) / admission.ASK_AGAIN_S
    assert 1 <= world.log.committed_asked - asked <= 1 + rounds


@played(otherwise=SAYS, admission_lag_max=1, trainer_group="trainer-of-{run_id}")
async def test_a_run_whose_trainer_is_behind_does_not_hold_up_another(world: World) -> None:
    await closed(world, run_id="a")
    for run in ("a", "b", "none"):
        at = 0 if run == "a" else await samples_end(world)
        await read_up_to(world, at, f"trainer-of-{run}")
    status, told = await world.control("sessions", {"run_id": "a"})
    assert (status, "trainer-of-a is 2 records" in told["error"]) == (429, True)
    await world.open(run_id="b")
    await world.open()
    counts = world.gateway.metrics.counts
    assert counts["run_sessions_refused:a"] == 1
    assert counts["run_sessions_refused:b"] == 0
    assert counts["run_sessions_opened:b"] == 1
    assert set((await health(world))["groups"]) == {
        f"trainer-of-{run}" for run in ("a", "b", "none")
    }


@played(otherwise=SAYS, admission_lag_max=1, trainer_group="trainer-of-{run_id}")
async def test_groups_without_end_are_not_asked_for_but_those_of_later_runs_are(
    world: World,
) -> None:
    await closed(world)
    await read_up_to(world, 0, "trainer-of-later")
    looks = world.gateway.admission._looks
    for number in range(admission.GROUPS_MAX + 5):
        await world.open(run_id=f"run-{number}")
    assert len(looks) == admission.GROUPS_MAX
    first, second, *_ = looks
    for look in (looks[first], looks[second]):
        look.began_s -= admission.UNUSED_S
    status, told = await world.control("sessions", {"run_id": "later"})
    assert (status, "trainer-of-later is 2 records" in told["error"]) == (429, True)
    assert first not in looks
    assert second in looks
    assert len(looks) == admission.GROUPS_MAX


@played(otherwise=SAYS, admission_lag_max=1, trainer_group=GROUP)
async def test_whoever_starts_agents_waits_as_long_as_its_patience_lasts(world: World) -> None:
    await closed(world)
    await read_up_to(world, 0)
    url, key = world.gateway.base_url, world.gateway.keys.control_key
    impatient = Turnstream(url, key, patience_s=1.0)
    with pytest.raises(GatewayAway, match=r"429.*2 records behind"):
        await impatient.session().__aenter__()
    entering = asyncio.ensure_future(Turnstream(url, key).session().__aenter__())

    async def refused() -> bool:
        return world.gateway.metrics.counts["sessions_refused"] == 2

    await until(refused)
    await world.log.commit(GROUP, world.settings.samples_topic, {0: await samples_end(world)})
    session = await entering
    assert session.key


def test_a_group_may_be_that_of_a_run() -> None:
    assert Settings(trainer_group="trainer").trainer_group_of("r1") == "trainer"
    of_runs = Settings(trainer_group="{topic_prefix}-{run_id}", topic_prefix="t")
    assert of_runs.trainer_group_of("r1") == "t-r1"
    assert of_runs.trainer_group_of(None) == "t-none"
