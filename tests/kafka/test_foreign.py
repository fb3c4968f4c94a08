"""What other producers write into our topics costs only what they wrote, on a real broker."""

import asyncio
import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.events import Reward, SessionEnded
from schemas.samples import Sample, SessionClosed
from streams.adapters.judgers.consumer import JudgingConsumer
from streams.adapters.judgers.judging import Judging
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.processor.rows import MarkerKey, RowKey, write_key
from streams.settings import Settings
from tests.cli.command import turn, turnstream
from tests.cli.places import Place, name_in_environment
from tests.cli.replay_claims import numbers
from tests.cli.stores import Json, example
from tests.kafka.broker import Broker
from tests.kafka.test_operator_commands import OnKafka, quick_settings
from tests.kafka.test_processor import records, worker


@pytest.fixture
def quick(settings: Settings, broker: Broker) -> Settings:
    return dataclasses.replace(quick_settings(broker), topic_prefix=settings.topic_prefix)


@pytest.fixture
def store(quick: Settings, tmp_path_factory: pytest.TempPathFactory) -> OnKafka:
    return OnKafka(quick, tmp_path_factory.mktemp("foreign"))


def feed_elsewhere(store: OnKafka, *events: Json) -> int:
    """Publish events on a partition that is not theirs, and wait until they are processed."""
    settings = store.settings
    home = partition_of(event_key(events[0]["session_id"]), settings.partitions)
    elsewhere = (home + 1) % settings.partitions

    async def publish() -> None:
        async with KafkaLog(settings) as log:
            for event in events:
                outgoing = dataclasses.replace(store.outgoing(event), partition=elsewhere)
                await log.publish(outgoing)
            await store.processed(log)

    asyncio.run(publish())
    return elsewhere


def letters(settings: Settings, count: int) -> list[DeadLetter]:
    found = asyncio.run(records(settings, settings.dead_letters_topic, count))
    return [letter for letter in found if isinstance(letter, DeadLetter)]


def test_an_event_on_a_wrong_partition_is_a_letter_and_comes_in_by_its_replay(
    store: OnKafka,
) -> None:
    settings, events = store.settings, example("torn")
    with worker(settings, store.folder / "worker.log"):
        store.feed(*events[:2])
        elsewhere = feed_elsewhere(store, events[2])
        (letter,) = letters(settings, 1)
        assert (letter.code, letter.session_id) == ("wrong_partition", "torn")
        home = partition_of(b"torn", settings.partitions)
        assert f"partition {elsewhere} of " in letter.detail
        assert f"partition {home} of {settings.partitions} " in letter.detail
        ran = store.run("dead-letters", "replay", "--code", "wrong_partition")
        assert ran.code == 0, ran.err
        assert f"replayed to {settings.turns_topic}/{home}/" in ran.out
        store.feed(*events[3:])
        outcomes = asyncio.run(records(settings, settings.samples_topic, 2))
    closed = [record for record in outcomes if isinstance(record, SessionClosed)]
    assert [(one.turns, one.end_status) for one in closed] == [(5, "completed")]
    assert [record for record in outcomes if isinstance(record, Sample)]


def test_a_session_wholly_on_a_wrong_partition_begins_nowhere(store: OnKafka) -> None:
    settings, events = store.settings, example("stray")
    with worker(settings, store.folder / "worker.log"):
        feed_elsewhere(store, *events)
        found = letters(settings, len(events))
        assert [letter.code for letter in found] == ["wrong_partition"] * len(events)
        assert store.ends(settings.samples_topic) == 0


def test_a_log_from_before_goes_on_where_it_is(store: OnKafka) -> None:
    settings = store.settings = dataclasses.replace(store.settings, foreign_partitions="accept")
    with worker(settings, store.folder / "worker.log"):
        feed_elsewhere(store, *example("stray"))
        found = asyncio.run(records(settings, settings.samples_topic, 2))
    assert [r.end_status for r in found if isinstance(r, SessionClosed)] == ["completed"]
    assert store.ends(settings.dead_letters_topic) == 0


def test_foreign_entries_of_the_changelog_end_no_worker(store: OnKafka) -> None:
    settings, events = store.settings, example("kept")
    said = store.folder / "worker.log"
    with worker(settings, said):
        store.feed(*events[:3])

    async def spoil() -> None:
        home = partition_of(b"kept", settings.partitions)
        entries = [
            (b"zzz", b"junk"),
            (b"", b"no key"),
            (write_key(RowKey(1, "other")), b"\xc1"),
            (write_key(MarkerKey("other")), b"junk"),
            # Its form is a floor's: all that is below it would be passed over.
            (b"f|AAAAAAAA", b"AAAAAAAA"),
        ]
        async with KafkaLog(settings) as log:
            for key, value in entries:
                topic = settings.changelog_topic
                await log.publish(Outgoing(topic=topic, key=key, value=value, partition=home))

    asyncio.run(spoil())
    with worker(settings, said):
        store.feed(*events[3:])
        found = asyncio.run(records(settings, settings.samples_topic, 2))
    assert [r.turns for r in found if isinstance(r, SessionClosed)] == [5]
    (line,) = [line for line in said.read_text().splitlines() if "no processor wrote" in line]
    assert "skipped 5 entries of the table's changelog" in line


def test_events_on_wrong_partitions_keep_no_session_from_its_judge(quick: Settings) -> None:
    """A session of each partition, since in which order they are read is nobody's to say."""
    homes = {partition_of(f"s{n}".encode(), quick.partitions): f"s{n}" for n in range(99)}
    assert len(homes) == quick.partitions > 1

    async def work() -> Counter[str]:
        async with KafkaLog(quick) as log:
            for home, session_id in homes.items():
                turn = codec.from_json(json.dumps(example(session_id)[0]).encode())
                ended = SessionEnded(
                    session_id=session_id, end_status="completed", reward_pending=True
                )
                reward = Reward(session_id=session_id, reward=0.5)
                elsewhere = [(reward, partition) for partition in homes if partition != home] * 9
                for event, partition in [(turn, home), (ended, home), *elsewhere]:
                    outgoing = Outgoing(
                        topic=quick.turns_topic,
                        key=event_key(session_id),
                        value=codec.to_msgpack(event),
                        partition=partition,
                    )
                    await log.publish(outgoing)
            consumer = JudgingConsumer(quick, log, Judging(lambda _: 1.0))
            await asyncio.wait_for(consumer.run(asyncio.Event(), once=True), 60)
            return consumer.counts

    assert asyncio.run(work()) == {"judged": quick.partitions}


def test_a_dump_gives_a_session_whatever_partitions_its_events_are_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first on a far position of its partition, the others on early ones of another."""
    name_in_environment(settings, monkeypatch)
    place, events = Place(settings, tmp_path), example("torn")
    home = partition_of(b"torn", settings.partitions)
    near = next(f"s{n}" for n in range(99) if partition_of(b"s%d" % n, settings.partitions) == home)
    place.feed(*(turn(near, f"t{n}") for n in range(9)), *events[:2])
    topic, elsewhere = settings.turns_topic, (home + 1) % settings.partitions
    for event in events[2:]:
        value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
        place.publish(Outgoing(topic=topic, key=b"torn", value=value, partition=elsewhere))
    # In the order of the dump, so one that has the partition with the beginning first.
    dump = sorted(turnstream("export", "events").records, key=lambda e: e["partition"] != home)
    assert {(e["session_id"], e["partition"]) for e in dump} == {
        *((near, home), ("torn", home), ("torn", elsewhere))
    }
    ran = turnstream("linearize", place.file(*dump), "--open", "skip")
    assert ran.err == ""
    (closed,) = [r for r in ran.records if r["type"] == "session_closed"]
    assert (closed["session_id"], closed["turns"]) == ("torn", 5)
    assert "gaps" not in closed


@pytest.mark.parametrize("given", ["3", "8"])
def test_readers_with_another_number_of_partitions_say_so_and_pass_nothing_over(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    name_in_environment(settings, monkeypatch)
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", given)
    place = Place(settings, tmp_path)
    (tmp_path / "my_judge.py").write_text("def one(case):\n    return 1.0\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    waits = {"type": "session_ended", "end_status": "completed", "reward_pending": True}
    names = [f"s{n}" for n in range(9)]
    place.feed(*(event for s in names for event in (turn(s), waits | {"session_id": s})))
    said = (
        f"turnstream: {settings.turns_topic} has 4 partitions, TURNSTREAM_PARTITIONS is {given}: "
        "set it to 4, as for whoever writes there\n"
    )
    judge = ("judge", "my_judge:one", "--once", "--log", "kafka")
    for command in (judge, ("replay", "--profile", "lossless")):
        ran = turnstream(*command)
        assert (ran.code, ran.out, ran.err) == (1, "", said)
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", "4")
    ran = turnstream(*judge)
    assert (ran.code, ran.err, len(ran.out.splitlines())) == (0, "", len(names))
    compared = numbers(turnstream("replay", "--profile", "lossless"))
    assert compared["events refused"] == ["0", "0", "0"]
