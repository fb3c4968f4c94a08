"""Whatever the order in which given and judged rewards arrive, every shell ends at one value.

A session for every interleaving of two given and two judged rewards with the end of the session at
every place in it, all in one log of Kafka and one of a file, each worked on by a worker process;
then the same events through `linearize`, and through `replay` of the file's log.
"""

import asyncio
import dataclasses
import json
import subprocess
import time
from pathlib import Path

import pytest

from schemas import codec
from schemas.record import Record
from schemas.samples import Sample, SampleRevised
from streams.log.interface import Log, Outgoing
from streams.log.keys import event_key
from streams.log.opening import open_log
from streams.settings import KAFKA, Settings
from tests.cli.command import COMMAND
from tests.core.life import T1, end, judged, of, reward
from tests.core.notation import Json
from tests.core.test_reward_origins import interleavings
from tests.kafka.test_processor import worker

GIVEN = [reward(0.1, "g1"), reward(0.2, "g2")]
JUDGED = [judged(0.6, "j1"), judged(0.7, "j2")]
SECONDS_MAX = 120.0
WORTH = {0.2}


def sessions() -> list[list[Json]]:
    """The events of each session, in order."""
    lives = [
        [T1, *rewards[:at], end(reward_pending=True), *rewards[at:]]
        for rewards in interleavings(GIVEN, JUDGED)
        for at in range(len(rewards))  # behind all of them it would wait for an expiry
    ]
    return [[of(f"s{n}", event) for event in life] for n, life in enumerate(lives)]


def final_values(records: list[Record]) -> dict[str, set[float | None]]:
    """By session: what the newest record of each of its samples says."""
    newest: dict[str, tuple[str, int, float | None]] = {}
    for record in records:
        if isinstance(record, Sample | SampleRevised):
            value = record.session_id, record.revision, record.session_reward
            newest[record.sample_id] = max(
                value, newest.get(record.sample_id, value), key=lambda one: one[1]
            )
    worth: dict[str, set[float | None]] = {}
    for session_id, _, value_found in newest.values():
        worth.setdefault(session_id, set()).add(value_found)
    return worth


async def worked_on(settings: Settings, lives: list[list[Json]]) -> list[Record]:
    async with open_log(settings, create=True) as log:
        for event in (event for life in lives for event in life):
            value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
            key = event_key(event["session_id"])
            sent = await log.send(Outgoing(topic=settings.turns_topic, key=key, value=value))
        await sent
        until_s = time.monotonic() + SECONDS_MAX
        while sum((await log.lag(settings.processor_id, settings.turns_topic)).values()):
            assert time.monotonic() < until_s, "the worker does not come to the end"
            await asyncio.sleep(0.2)
        return await all_of(log, settings.samples_topic)


async def all_of(log: Log, topic: str) -> list[Record]:
    ends = await log.end_positions(topic)
    reader = await log.read(topic, await log.start_positions(topic))
    found: list[Record] = []
    while any(reader.positions.get(at, 0) < end for at, end in ends.items()):
        found += [codec.from_msgpack(entry.value or b"") for entry in await reader.next_batch(0.5)]
    await reader.close()
    return found


@pytest.mark.parametrize("store", [KAFKA, "file"])
def test_every_order_of_rewards_ends_at_one_value(
    store: str, settings: Settings, tmp_path: Path
) -> None:
    given = dataclasses.replace(settings, metrics_port=0, profile="lossless")
    if store == "file":
        given = dataclasses.replace(given, log=str(tmp_path / "log.db"))
        asyncio.run(_created(given))
    lives = sessions()
    with worker(given, tmp_path / "worker.log"):
        records = asyncio.run(worked_on(given, lives))
    worth = final_values(records)
    assert len(worth) == len(lives)
    assert set(map(frozenset, worth.values())) == {frozenset(WORTH)}
    if store == "file":
        prefix = ["--from-prefix", given.topic_prefix]
        options = ["--profile", "seed", "--stdout"]
        replayed = output_of("replay", "--log", given.log, *prefix, *options)
        assert final_values(replayed) == worth


async def _created(settings: Settings) -> None:
    async with open_log(settings, create=True):
        pass


def test_linearize_ends_at_the_same_value() -> None:
    lives = sessions()
    lines = "\n".join(json.dumps(event) for life in lives for event in life)
    worth = final_values(output_of("linearize", given=lines))
    assert len(worth) == len(lives)
    assert set(map(frozenset, worth.values())) == {frozenset(WORTH)}


def output_of(*command: str, given: str = "") -> list[Record]:
    ran = subprocess.run(
        [COMMAND, *command],
        input=given.encode(),
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return [codec.from_json(line) for line in ran.stdout.splitlines() if line.startswith(b"{")]
