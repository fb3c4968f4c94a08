"""Judgers at work: in a wrapped environment, through the client, and as a consumer of their own."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from schemas import codec
from schemas.events import Reward, SessionEnded, SessionExpired, SessionOpened
from schemas.record import Record
from schemas.samples import SampleRevised
from streams.adapters.client import Turnstream
from streams.adapters.environments import recorded
from streams.adapters.judgers import consumer
from streams.adapters.judgers.cases import case_of
from streams.adapters.judgers.consumer import JudgingConsumer
from streams.adapters.judgers.evaluation import Evaluation, evaluated
from streams.adapters.judgers.judging import Case, Judging
from streams.core.content import text_of
from streams.core.state import OpenSession
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.sqlite import SqliteLog
from tests.adapters.environments.test_model_calls import Model
from tests.adapters.environments.toys import Chat, Walk, said
from tests.adapters.environments.world import SECONDS_MAX, World
from tests.cli.command import COMMAND
from tests.cli.up_process import Up, up

JUDGERS = """
import time
from streams.core.content import text_of

def exact(case):
    print("not for the terminal's reader", end="")
    if case.metadata.get("raise"):
        raise KeyError("no ground truth")
    if case.metadata.get("reject"):
        return None
    right = text_of(case.final_message) == case.metadata["answer"]
    return {"score": float(right), "turns": case.turns}

def short(case):
    return len(case.messages)

number = 7
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def exact(case: Case) -> dict[str, Any] | None:
    if case.metadata.get("reject"):
        return None
    score = float(text_of(case.final_message) == case.metadata["answer"])
    return {"score": score, "turns": case.turns, "length": len(case.messages)}


def test_a_wrapped_environment_asks_its_judgers_before_the_end_is_told(world: World) -> None:
    def played(metadata: dict[str, Any], **options: Any) -> Any:
        env = recorded(Walk(1), recorder, fields={"metadata": metadata}, **options)
        env.reset()
        env.turn(**Model().answer([{"role": "user", "content": "2 + 2?"}]), tools=[{"name": "x"}])
        env.step(1)
        return env

    with world.recorder() as recorder:
        judging = Judging(exact)
        played({"answer": "answer 1"}, judging=judging)
        played({"answer": "another"}, judging=judging)
        played({"reject": True}, judging=judging)
        played({}, judging=judging)  # no ground truth: the judger raises
    ends = [told.ended for told in world.told().values()]
    assert [end.end_status for end in ends] == ["completed", "completed", "rejected", "error"]
    assert [end.reward_origin for end in ends] == ["judged", "judged", "given", "given"]
    assert ends[0].reward == {"score": 1.0, "turns": 1, "length": 2}
    assert (ends[2].accepted, ends[2].reward) == (False, None)
    reason = ends[3].reason
    assert reason is not None
    assert (reason.stage, reason.category, reason.type) == ("judger", "raised", "KeyError")
    outcomes, samples = world.processed(4)
    assert [one.reward for one in outcomes.values()] == [1.0, 0.0, None, None]
    assert [one.accepted for one in outcomes.values()] == [True, True, False, True]
    assert [sample.reward for sample in samples] == [1.0, 0.0]


def test_an_awaited_environment_asks_them_too(world: World) -> None:
    async def work() -> None:
        env = recorded(Chat(turns=2), recorder, judging=Judging(lambda case: len(case.messages)))
        step = await env.reset()
        while not step.last():
            step = await env.step(said("on"))

    with world.recorder() as recorder:
        asyncio.run(work())
    assert world.only().ended.reward == {"score": 5.0}  # three observations and two answers


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def asked(session: Any) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "Who are you?"}]
    with openai.OpenAI(base_url=session.base_url_with_key, api_key="none") as sdk:
        answer = sdk.chat.completions.create(model="m", messages=messages)
    return [*messages, answer.choices[0].message]


def test_the_client_asks_judgers_before_the_session_is_torn_down(gateway: Up) -> None:
    turnstream = Turnstream(gateway.url, gateway.control_key)

    def judge(case: Case) -> dict[str, Any]:
        assert case.final_message is not None
        return {"score": float("engine" in text_of(case.final_message)), "seen": case.turns}

    with turnstream.session(metadata={"answer": "x"}) as session:
        verdict = session.judge(Judging(judge), asked(session))
    assert verdict.reward == {"score": 1.0, "seen": 1}
    (given,) = [e for e in gateway.events(session.session_id) if isinstance(e, Reward)]
    assert given.origin == "judged"
    closed = gateway.closed(session.session_id)
    assert (closed.end_status, closed.reward, closed.trained > 0) == ("completed", 1.0, True)
    assert json.loads(bytes(closed.reward_payload)) == {"score": 1.0, "seen": 1}


@pytest.mark.parametrize(
    ("metadata", "status", "stage"),
    [({"reject": 1}, "rejected", "judger"), ({}, "error", "judger")],
)
def test_a_rejection_or_an_error_of_a_judger_ends_the_clients_session(
    gateway: Up, metadata: dict[str, Any], status: str, stage: str
) -> None:
    async def work() -> str:
        turnstream = Turnstream(gateway.url, gateway.control_key)
        async with turnstream.session(metadata=metadata or None) as session:
            messages = await asyncio.to_thread(asked, session)
            await session.judge(Judging(exact), messages)
        return session.session_id

    session_id = asyncio.run(work())
    (ended,) = [e for e in gateway.events(session_id) if isinstance(e, SessionEnded)]
    assert (ended.end_status, ended.reason and ended.reason.stage) == (status, stage)
    closed = gateway.closed(session_id)
    assert (closed.end_status, closed.sample_ids, closed.trained) == (status, [], 0)


def played_pending(world: World, *metadata: dict[str, Any], split: str = "train") -> None:
    """Sessions that ended and wait for their reward."""
    with world.recorder() as recorder:
        for given in metadata:
            fields = {"metadata": given, "split": split}
            env = recorded(Walk(1), recorder, fields=fields, score=None)
            env.reset()
            env.turn(**Model().answer([{"role": "user", "content": "2 + 2?"}]))
            env.step(1)


def judged(world: World, judging: Judging, seconds: float | None = None) -> dict[str, int]:
    async def work() -> dict[str, int]:
        async with SqliteLog(world.path, world.settings) as log:
            consumer, stop = JudgingConsumer(world.settings, log, judging), asyncio.Event()
            running = asyncio.ensure_future(consumer.run(stop, once=seconds is None))
            if seconds is not None:
                await asyncio.sleep(seconds)
                stop.set()
            await asyncio.wait_for(running, SECONDS_MAX)
            return dict(consumer.counts)

    return asyncio.run(work())


def test_a_consumer_judges_what_ended_and_waits_and_each_of_it_once(world: World) -> None:
    played_pending(world, {"answer": "answer 1"}, {"answer": "another"}, {"reject": True})
    with world.recorder() as recorder:  # has its reward; nobody asks
        env = recorded(Walk(1), recorder)
        env.reset()
        env.step(1)
    assert judged(world, Judging(exact)) == {"judged": 2, "rejected": 1}
    outcomes, samples = world.processed(4)
    rewards = [(one.end_status, one.reward, one.withheld) for one in outcomes.values()]
    assert sorted(rewards, key=str) == [
        ("completed", -0.0, None),
        ("completed", 0.0, None),
        ("completed", 1.0, None),
        ("completed", None, "no_reward"),
    ]
    assert sorted(sample.reward or 0 for sample in samples) == [0.0, 1.0]
    # Once more, from the same place: nothing is new, and nothing would change.
    assert judged(world, Judging(lambda _: 99.0)) == {}
    assert world.letters() == []


@pytest.mark.parametrize("size", [2_000_000, 20_000_000])
def test_a_payload_over_the_limit_costs_the_payload_and_nobody_elses_verdict(
    world: World, size: int
) -> None:
    """More than a session may hold, and more than one message of the log does."""
    played_pending(world, {"size": size}, {"size": 1})

    def wordy(case: Case) -> dict[str, Any]:
        return {"score": 0.5, "why": "x" * case.metadata["size"]}

    counts = judged(world, Judging(wordy))
    assert counts == {"judged": 2, "payloads_too_large": 1}
    outcomes, _ = world.processed(2)
    assert [one.reward for one in outcomes.values()] == [0.5, 0.5]
    assert world.letters() == []


def test_every_session_gets_its_own_verdict_in_whatever_order_they_come(world: World) -> None:
    played_pending(world, *({"answer": number} for number in range(6)))

    async def slower_for_the_first(case: Case) -> float:
        await asyncio.sleep(0.2 * (5 - case.metadata["answer"]))
        return float(case.metadata["answer"])

    assert judged(world, Judging(slower_for_the_first)) == {"judged": 6}
    given = {
        json.loads(bytes(told.opened.metadata))["answer"]: [
            reward.reward for reward in told.rewards if reward.turn_id is None
        ]
        for told in world.told().values()
    }
    assert given == {number: [{"score": float(number)}] for number in range(6)}


def test_what_a_judger_failed_at_is_judged_when_it_is_put_right(world: World) -> None:
    played_pending(world, {"answer": "answer 1"}, {"nothing": 1})
    assert judged(world, Judging(exact)) == {"judged": 1, "failed": 1}
    assert judged(world, Judging(lambda _: 0.5)) == {"judged": 1}
    outcomes, _ = world.processed(2)
    assert [one.reward for one in outcomes.values()] == [1.0, 0.5]


def give(world: World, *events: Reward | SessionExpired | SessionOpened | SessionEnded) -> None:
    """Put events behind everything that stands in the log."""

    async def work() -> None:
        async with SqliteLog(world.path, world.settings) as log:
            for event in events:
                await log.publish(
                    Outgoing(
                        topic=world.settings.turns_topic,
                        key=event_key(event.session_id),
                        value=codec.to_msgpack(event),
                    )
                )

    asyncio.run(work())


def test_on_an_old_log_nobody_judges_what_has_its_reward_or_has_expired(world: World) -> None:
    played_pending(world, *[{"answer": "answer 1"}] * 4)
    given, expired, provisional, waits = world.told()
    offsets = {name: at for at, name in enumerate(world.order())}
    give(
        world,
        Reward(session_id=given, reward_id="human", reward=0.1),
        SessionExpired(session_id=expired, cause="reward_grace", last_offset=offsets[expired]),
        Reward(session_id=provisional, reward_id="first look", reward=0.2, final=False),
        SessionExpired(session_id=waits, last_offset=0),  # void: not its newest event
    )
    asked: list[str] = []

    def judge(case: Case) -> float:
        asked.append(case.session_id)
        return 0.75

    assert judged(world, Judging(judge)) == {"judged": 2}
    assert sorted(asked) == sorted([provisional, waits])
    outcomes, _ = world.processed(4)
    rewards = {name: outcome.reward for name, outcome in outcomes.items()}
    # The judged one closes the session with the provisional reward, which somebody gave.
    assert rewards == {given: 0.1, expired: None, provisional: 0.2, waits: 0.75}
    assert world.letters() == []


def test_a_judged_reward_replaces_none_that_came_while_it_was_judged(world: World) -> None:
    """The judge read the session before the reward was given, and published after it."""
    played_pending(world, {})
    (name,) = world.told()

    async def slow(case: Case) -> float:
        reward = Reward(session_id=name, reward_id="human", reward=0.1)
        await asyncio.to_thread(give, world, reward)
        return 0.75

    async def work() -> None:
        async with SqliteLog(world.path, world.settings) as log:
            consumer = JudgingConsumer(world.settings, log, Judging(slow))
            await consumer.run(asyncio.Event(), once=True)
            assert consumer.counts == {"judged": 1}

    asyncio.run(work())
    rewards = [(one.reward, one.origin) for one in world.only().rewards if one.turn_id is None]
    assert rewards == [(0.1, "given"), ({"score": 0.75}, "judged")]
    outcomes, samples = world.processed(1)
    assert outcomes[name].reward == 0.1
    assert [sample.session_reward for sample in samples] == [0.1]
    revised = [one for one in world.read(world.settings.samples_topic) if is_revision(one)]
    assert revised == []
    assert world.letters() == []


def is_revision(record: Record) -> bool:
    return isinstance(record, SampleRevised)


def test_a_judgement_is_cancelled_when_its_session_closes(world: World) -> None:
    played_pending(world, {})
    (name,) = world.told()
    cancelled: list[str] = []

    async def work() -> dict[str, int]:
        begun, stop = asyncio.Event(), asyncio.Event()

        async def endless(case: Case) -> float:
            begun.set()
            try:
                await asyncio.sleep(SECONDS_MAX)
            except asyncio.CancelledError:
                cancelled.append(case.session_id)
                raise
            return 0.75

        async with SqliteLog(world.path, world.settings) as log:
            consumer = JudgingConsumer(world.settings, log, Judging(endless))
            running = asyncio.ensure_future(consumer.run(stop))
            await asyncio.wait_for(begun.wait(), SECONDS_MAX)
            reward = Reward(session_id=name, reward_id="human", reward=0.1)
            await asyncio.to_thread(give, world, reward)
            deadline_s = time.monotonic() + SECONDS_MAX
            while not cancelled:
                assert time.monotonic() < deadline_s, consumer.counts
                await asyncio.sleep(0.02)
            stop.set()
            await running
            return dict(consumer.counts)

    assert asyncio.run(work()) == {"cancelled": 1}
    assert cancelled == [name]
    assert [one.reward for one in world.only().rewards if one.turn_id is None] == [0.1]


def test_numbers_that_no_reader_holds_keep_no_session_from_its_judgement(world: World) -> None:
    played_pending(world, {"answer": "answer 1"})
    texts = (
        '{"answer": "answer 1", "a": 1e999}',
        '{"answer": "answer 1", "a": %s}' % ("9" * 5_000),
    )
    for number, text in enumerate(texts):
        name = f"odd-{number}"
        give(
            world,
            SessionOpened(session_id=name, metadata=msgspec.Raw(text.encode())),
            SessionEnded(session_id=name, end_status="completed", reward_pending=True),
        )
    assert judged(world, Judging(lambda case: case.metadata["answer"] == "answer 1")) == {
        "judged": 3
    }


def test_a_session_that_cannot_be_made_a_case_of_costs_itself_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_pending(world, {"answer": "answer 1"}, {"break": 1}, {"answer": "answer 1"})
    broken = list(world.told())[1]

    def breaks(session: OpenSession) -> Case:
        if session.session_id == broken:
            raise ArithmeticError("an error of ours")
        return case_of(session)

    monkeypatch.setattr(consumer, "case_of", breaks)
    said: list[tuple[str, Any]] = []

    async def work() -> dict[str, int]:
        async with SqliteLog(world.path, world.settings) as log:
            judge = JudgingConsumer(
                world.settings, log, Judging(exact), say=lambda *told: said.append(told)
            )
            await judge.run(asyncio.Event(), once=True)
            return dict(judge.counts)

    assert asyncio.run(work()) == {"judged": 2, "failed": 1}
    (error,) = [verdict.error for name, verdict in said if name == broken]
    assert (error.category, error.type) == ("unreadable", "ArithmeticError")
    monkeypatch.undo()
    # As after a judger that failed: it waits, and a consumer that can read it judges it.
    assert judged(world, Judging(lambda _case: 1.0)) == {"judged": 1}


def test_a_judger_that_may_do_better_is_asked_again(world: World) -> None:
    asked_s: list[float] = []

    async def slow_at_first(case: Case) -> float:
        asked_s.append(time.monotonic())
        await asyncio.sleep(60 if len(asked_s) == 1 else 0)
        return 1.0

    played_pending(world, {})
    assert judged(world, Judging(slow_at_first, timeout_s=0.2)) == {"retries": 1, "judged": 1}
    assert len(asked_s) == 2


def test_an_open_session_is_not_left_behind_by_a_restart(world: World) -> None:
    with world.recorder() as recorder:
        env = recorded(Walk(2), recorder, score=None, fields={"metadata": {"answer": "answer 1"}})
        env.reset()
        env.turn(**Model().answer([{"role": "user", "content": "2 + 2?"}]))
        assert judged(world, Judging(exact), seconds=1.0) == {}
        env.step(1)
        env.end("completed")
    assert judged(world, Judging(exact)) == {"judged": 1}
    outcomes, _ = world.processed(1)
    (outcome,) = outcomes.values()
    assert (outcome.reward, outcome.turns) == (1.0, 1)


def test_eval_sessions_that_failed_are_counted(world: World) -> None:
    right, wrong = {"answer": "answer 1"}, {"answer": "no"}
    played_pending(world, right, right, right, right, split="eval")
    with world.recorder() as recorder:
        for status in ("error", "rejected"):
            env = recorded(Walk(1), recorder, fields={"split": "eval", "metadata": wrong})
            env.reset()
            env.end(status)
    judged(world, Judging(exact))
    outcomes, samples = world.processed(6)
    assert evaluated(outcomes.values()) == Evaluation(6, 2, 4 / 6)
    assert samples == []  # eval sessions give none


def command(world: World, *arguments: str) -> "subprocess.CompletedProcess[str]":
    folder = world.path.parent
    (folder / "my_judgers.py").write_text(JUDGERS)
    return subprocess.run(
        [COMMAND, "judge", *arguments, "--log", str(world.path), "--once"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_the_command_judges_with_functions_of_ones_own(world: World) -> None:
    played_pending(world, {"answer": "answer 1"}, {"raise": 1}, {"reject": 1})
    first, second, third = world.told()
    ran = command(world, "my_judgers:exact", "my_judgers:short=0.25", "--name", "mine")
    assert ran.returncode == 1
    assert f"judged    {first}  1.5" in ran.stdout
    assert f"rejected  {third}" in ran.stdout
    assert ran.stderr.splitlines() == [
        f"failed    {second}  raised: exact: 'no ground truth'",
    ]
    outcomes, _ = world.processed(2)
    payload = json.loads(bytes(outcomes[first].reward_payload))
    assert payload == {"score": 1.5, "exact": {"score": 1.0, "turns": 1}, "short": {"score": 2.0}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:exact"], "nowhere:exact: No module named 'nowhere'; give MODULE:FUNCTION"),
        (["my_judgers:none"], "has no attribute 'none'"),
        (["my_judgers:number"], "my_judgers:number is a int, no function"),
        (["my_judgers:exact=much"], "the weight is no number"),
        (["my_judgers:exact", "my_judgers:exact"], "each with a name of its own"),
        (["my_judgers:exact", "--timeout", "0"], "give seconds above 0"),
    ],
)
def test_what_cannot_be_judged_with_is_one_line(
    world: World, arguments: list[str], words: str
) -> None:
    ran = command(world, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    assert words in line
