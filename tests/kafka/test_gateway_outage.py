"""The broker is away for 20 s in the middle of conversations with the real SDK and its own retries.

    patient   a gateway that waits for the log longer than the outage: its clients see a pause
    hasty     one that gives a turn up after seconds: its clients see errors they may retry

Each has a client that streams and one that does not, on a broker that is killed and on one that
is frozen, which takes everything afterwards that was sent to it meanwhile. What a client sees is
taken from its own connection, what was sampled from the engine's journal, the rest from the log.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai

from schemas.events import Event, Turn, TurnUndelivered
from streams.adapters.engines.scripted import Rule, Script, ScriptedEngine
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.adapters.gateway.agents import Agent, says, user
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.outcomes import Outcome, journalled, recorded, whole_prompts
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.adapters.gateway.world import World, served
from tests.kafka.broker import START_SECONDS_MAX, Broker
from tests.kafka.test_gateway import outcome_of

OUTAGE_S = 20.0
PATIENT_S = OUTAGE_S + START_SECONDS_MAX + 30
HASTY_S = 4.0
SECONDS_MAX = 2 * PATIENT_S
AROUND = 2
"""Turns before the outage, and after it, at least."""

Change = Callable[[], object]
"""Of a broker: it goes, it comes back."""


@dataclasses.dataclass
class Call:
    """One call as the client saw it, the SDK's own retries included."""

    question: str
    text: str = ""
    text_s: list[float] = dataclasses.field(default_factory=list)
    """When parts of the text came."""
    end_s: float | None = None
    """When its end came."""
    error: openai.APIError | None = None


class Caller:
    """An agent that asks one question after the other, each until it is answered."""

    def __init__(self, agent: Agent, *, stream: bool) -> None:
        self.agent = agent
        self.stream = stream
        self.calls: list[Call] = []
        self.errors: list[Any] = []
        """Every reply that was no 200, also those that the SDK tried again by itself."""

    @property
    def answered(self) -> int:
        return sum(call.end_s is not None for call in self.calls)

    async def heard(self, response: Any) -> None:
        if response.status_code != 200:
            await response.aread()
            self.errors.append(response)

    async def until(self, enough: asyncio.Event) -> None:
        """Ask on until it is enough, and a few questions more."""
        left = AROUND
        while left:
            left -= enough.is_set()
            await self.answer(f"Question {self.answered}?")

    async def answer(self, question: str) -> None:
        asked = [*self.agent.messages, user(question)]
        while True:
            call = Call(question)
            self.calls.append(call)
            try:
                await (self._streamed if self.stream else self._whole)(call, asked)
            except openai.APIError as error:
                call.error = error
                continue
            answer = {"role": "assistant", "content": call.text}
            self.agent.messages = [*asked, answer]
            return

    async def _whole(self, call: Call, messages: list[dict[str, Any]]) -> None:
        reply = await self.agent.client.chat.completions.create(model="m", messages=messages)
        call.text, call.end_s = reply.choices[0].message.content, time.monotonic()

    async def _streamed(self, call: Call, messages: list[dict[str, Any]]) -> None:
        create = self.agent.client.chat.completions.create
        async with await create(model="m", messages=messages, stream=True) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    if choice.delta.content:
                        call.text += choice.delta.content
                        call.text_s.append(time.monotonic())
                    if choice.finish_reason:
                        call.end_s = time.monotonic()


@asynccontextmanager
async def world(settings: Settings, publish_timeout_s: float) -> AsyncIterator[World]:
    given = dataclasses.replace(settings, gateway_port=0, publish_timeout_s=publish_timeout_s)
    answers = tuple(_answer(number) for number in range(2000))
    engine = ScriptedEngine(Script(answers=answers), renderer().backend)
    async with KafkaLog(given) as log:
        made = World(given, Faulty(log), engine)
        async with served(made):
            yield made


def _answer(number: int) -> Rule:
    return says(f"This is answer number {number}.", gap_ms=10)


async def opened(made: World, *, stream: bool) -> Caller:
    # Its retries are the SDK's own: two, after the time that the gateway says.
    http = openai.DefaultAsyncHttpxClient()
    agent = await made.open(client={"max_retries": 2, "http_client": http})
    caller = Caller(agent, stream=stream)
    http.event_hooks = {"response": [caller.heard]}
    return caller


async def became(made: World, caller: Caller) -> tuple[Outcome, list[TurnUndelivered]]:
    """What a session became, and of which turns the log was told that they were not delivered."""
    session_id = caller.agent.session_id
    while True:
        status, told = await made.control(f"sessions/{session_id}/end", {"reward": 1.0})
        if status == 200:
            break
        assert (status, "try again" in told["error"]) == (503, True)
        await asyncio.sleep(0.5)
    events = [each for each in await made.events(session_id) if isinstance(each, Event)]
    closed, samples = outcome_of(events)
    turns = {event.turn_id: event for event in events if isinstance(event, Turn)}
    undelivered = [event for event in events if isinstance(event, TurnUndelivered)]
    return Outcome(turns, whole_prompts(turns), samples, closed), undelivered


def test_20_seconds_without_a_broker_lose_nothing_that_a_client_saw_the_end_of(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path / "killed") as killed, Broker(tmp_path / "frozen") as frozen:

        async def both() -> None:
            async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as group:
                group.create_task(_story(killed, killed.kill, killed.start))
                group.create_task(_story(frozen, frozen.pause, frozen.resume))

        asyncio.run(both())


async def _story(broker: Broker, go: Change, come: Change) -> None:
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, partitions=2)
    await create_topics(settings)
    async with AsyncExitStack() as stack:
        worlds = [
            await stack.enter_async_context(world(settings, publish_timeout_s))
            for publish_timeout_s in (PATIENT_S, HASTY_S)
        ]
        callers = [(made, await opened(made, stream=s)) for made in worlds for s in (False, True)]
        enough = asyncio.Event()
        enough.set()
        await asyncio.gather(*(caller.until(enough) for _, caller in callers))
        enough.clear()
        # The broker goes in the middle of calls; the streams begin when it is gone.
        asking = [asyncio.create_task(c.until(enough)) for _, c in callers if not c.stream]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(go)
        away_s = time.monotonic()
        asking += [asyncio.create_task(c.until(enough)) for _, c in callers if c.stream]
        await asyncio.sleep(OUTAGE_S)
        back_s = time.monotonic()
        await asyncio.to_thread(come)
        enough.set()
        await asyncio.gather(*asking)
        for number, (made, caller) in enumerate(callers):
            _answered_or_told(caller, patient=number < 2)
            if caller.stream:
                _text_came_while_it_was_away(caller, away_s, back_s)
            outcome, told = await became(made, caller)
            _nothing_is_lost(made.engine, caller, outcome, told)
            _say(caller, outcome, told, broken=[away_s, back_s])


def _answered_or_told(caller: Caller, *, patient: bool) -> None:
    """Every call has its end, or an error of the API's own shape that may be tried again."""
    failed = [call.error for call in caller.calls if call.end_s is None]
    assert None not in failed
    if patient:
        assert (failed, caller.errors) == ([], [])
        return
    assert failed or caller.errors, "a publication of so few seconds does not outlast the outage"
    for response in caller.errors:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert json.loads(response.content)["error"]["type"] == "log_unavailable"
    for error in failed:
        assert error is not None
        assert (error.type, "try again" in error.message) == ("log_unavailable", True)


def _text_came_while_it_was_away(caller: Caller, away_s: float, back_s: float) -> None:
    """All of an answer's text is there while the log is away; its end is not."""
    during = [
        call
        for call in caller.calls
        if call.text_s and away_s < call.text_s[0] and call.text_s[-1] < back_s
    ]
    assert during
    for call in during:
        assert call.text.startswith("This is answer number ")
        assert call.text.endswith(".")
        assert call.end_s is None or call.end_s > back_s


def _nothing_is_lost(
    engine: ScriptedEngine, caller: Caller, outcome: Outcome, told: list[TurnUndelivered]
) -> None:
    sampled = journalled(engine, caller.agent.session_id)
    assert recorded(outcome) <= sampled
    # Every number is a turn in the log, or is said to be none that the client got.
    seqs = {turn.seq for turn in outcome.turns.values()} | {event.seq for event in told}
    assert seqs - {None} == set(range(1, sampled.total() + 1))
    closed = outcome.closed
    assert (closed.gaps, closed.refused, closed.withheld) == (0, 0, None)

    # What the client saw the end of is one conversation, which trains whole and in order.
    (sample,) = outcome.samples
    undelivered = {event.turn_id for event in told}
    ended = [call.text for call in caller.calls if call.end_s is not None]
    spans = [span for span in sample.turns if span.turn_id not in undelivered]
    assert [_text(outcome.turns[span.turn_id]) for span in spans] == ended
    assert [span.turn_id for span in sample.turns] == [span.turn_id for span in spans]
    assert set(outcome.untrained) == undelivered & outcome.turns.keys()
    whole, logprobs = tuple(sample.tokens.tolist()), tuple(sample.logprobs.tolist())
    for start, end in ((span.start, span.end) for span in spans):
        assert sampled[whole[:start], whole[start:end], logprobs[start:end]] == 1
    assert sample.loss_mask == [(span.start, span.end) for span in spans]


def _text(turn: Turn) -> str:
    assert turn.response_message
    message: dict[str, Any] = msgspec.json.decode(turn.response_message)
    return str(message["content"])


def _say(
    caller: Caller, outcome: Outcome, told: list[TurnUndelivered], *, broken: list[float]
) -> None:
    """For whoever runs it with -s."""
    stream = "stream" if caller.stream else "whole"
    answered, failed = caller.answered, sum(call.error is not None for call in caller.calls)
    print(
        f"{stream}: {answered} answers, {len(caller.errors)} x 503, {failed} calls failed, "
        f"{len(outcome.turns)} turns in the log, {len(told)} said undelivered, "
        f"trained {outcome.closed.trained} of {outcome.closed.generated}, "
        f"away {broken[1] - broken[0]:.0f} s"
    )
