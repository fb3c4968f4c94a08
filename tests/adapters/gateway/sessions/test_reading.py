"""Sessions that come back together are read in one pass, and none of them fails another."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import codec
from schemas.events import SessionOpened, Turn, TurnUndelivered
from schemas.record import json_text
from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.rendering.encoding import as_ids
from streams.adapters.gateway.sessions.reading import Passes
from streams.adapters.gateway.sessions.session import Session
from streams.errors import LogAway, NoSuchPosition
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.world import until

SESSIONS = 20
TURNS = 5


def on_a_log(
    folder: Path, story: Callable[[Faulty, Passes, Settings], Awaitable[None]], **given: int
) -> None:
    async def whole() -> None:
        path = folder / "log.db"
        settings = Settings(log=str(path), **given)  # type: ignore[arg-type]
        async with asyncio.timeout(60), SqliteLog(path, settings) as sqlite:
            log = Faulty(sqlite)
            passes = Passes(settings, log)
            try:
                await story(log, passes, settings)
            finally:
                await passes.close()

    asyncio.run(whole())


def named(number: int) -> str:
    return f"s{number}"


async def written(log: Faulty, settings: Settings, turns: int = TURNS) -> list[int]:
    """Sessions whose events stand between each other's; where each begins."""
    begins = [await put(log, settings, SessionOpened(session_id=named(n))) for n in range(SESSIONS)]
    for turn in range(turns):
        for number in range(SESSIONS):
            await put(log, settings, a_turn(number, turn))
    return begins


def a_turn(number: int, turn: int) -> Turn:
    return Turn(
        session_id=named(number),
        turn_id=f"{named(number)}t{turn}",
        source="g",
        seq=turn + 1,
        prompt_messages=(json_text({"role": "user", "content": f"{turn}?"}),),
        prompt_ids=as_ids([number, turn]),
        output_ids=as_ids([7]),
        response_message=json_text({"role": "assistant", "content": f"{turn}."}),
    )


async def put(
    log: Faulty, settings: Settings, event: SessionOpened | Turn | TurnUndelivered
) -> int:
    key = event_key(event.session_id)
    entry = Outgoing(topic=settings.turns_topic, key=key, value=codec.to_msgpack(event))
    return (await log.publish(entry)).offset


def unread(number: int, begins: int) -> Session:
    session = Session(named(number), History())
    session.place = (0, begins)
    return session


@pytest.mark.parametrize("message", ['{"content": 1e999}', '{"content": %s}' % ("9" * 5_000), "7"])
def test_a_turn_with_a_message_that_nobody_can_read_costs_itself_alone(
    tmp_path: Path, message: str
) -> None:
    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings)
        odd, text = msgspec.Raw(message.encode()), b'{"role": "user", "content": "?"}'
        broken: tuple[dict[str, Any], ...] = (
            {"prompt_messages": (msgspec.Raw(text), odd)},
            {"response_message": odd},
        )
        for number, fields in enumerate(broken):
            turn = msgspec.structs.replace(a_turn(number, TURNS), **fields)
            await put(log, settings, turn)
            await put(log, settings, a_turn(number, TURNS + 1))
        sessions = [unread(number, begins[number]) for number in range(SESSIONS)]
        await asyncio.gather(*(passes.read_on(session) for session in sessions))
        for number, session in enumerate(sessions):
            turns = [f"s{number}t{turn}" for turn in range(TURNS)]
            last = [f"s{number}t{TURNS + 1}"] if number < 2 else []
            assert list(session.history.turns) == turns + last

    on_a_log(tmp_path, story)


def test_all_that_wait_for_a_partition_share_a_pass(tmp_path: Path) -> None:
    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings)
        sessions = [unread(number, begins[number]) for number in range(SESSIONS)]
        await asyncio.gather(*(passes.read_on(session) for session in sessions))
        assert (passes.passes, passes.entries) == (1, SESSIONS * (1 + TURNS))
        for number, session in enumerate(sessions):
            assert list(session.history.turns) == [a_turn(number, n).turn_id for n in range(TURNS)]
            assert session.opened is not None
            assert session.place == (0, SESSIONS * (1 + TURNS))
            assert session.sources == {"g": TURNS}

    on_a_log(tmp_path, story)


def test_who_asks_during_a_pass_gets_what_was_written_before_it_asked(tmp_path: Path) -> None:
    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings)
        one, two = unread(0, begins[0]), unread(1, begins[1])
        first = asyncio.create_task(passes.read_on(one))

        async def begun() -> bool:
            return passes.passes > 0

        await until(begun, every_s=0)
        await put(log, settings, TurnUndelivered(session_id=named(1), turn_id="s1t0"))
        await passes.read_on(two)
        await first
        assert two.undelivered == {"s1t0"}

    on_a_log(tmp_path, story)


def test_one_below_the_logs_start_fails_alone(tmp_path: Path) -> None:
    class Shortened(Faulty):
        async def start_positions(self, topic: str) -> dict[int, int]:
            return {0: 5}

    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings)
        passes = Passes(settings, Shortened(log))
        sessions = [unread(number, begins[number]) for number in range(SESSIONS)]
        ends = await asyncio.gather(
            *(passes.read_on(session) for session in sessions), return_exceptions=True
        )
        assert [type(end) for end in ends[:5]] == [NoSuchPosition] * 5
        assert ends[5:] == [None] * (SESSIONS - 5)
        assert passes.passes == 1

    on_a_log(tmp_path, story)


def test_bytes_of_others_count_and_one_over_the_limit_fails_alone(tmp_path: Path) -> None:
    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings, turns=100)
        late = await put(log, settings, SessionOpened(session_id="late"))
        old, new = unread(0, begins[0]), Session("late", History())
        new.place = (0, late)
        ends = await asyncio.gather(
            passes.read_on(old), passes.read_on(new), return_exceptions=True
        )
        assert isinstance(ends[0], CallRefused)
        assert (ends[0].status, ends[1]) == (410, None)
        assert new.opened is not None
        own = 100 * len(codec.to_msgpack(a_turn(0, 99)))
        assert own < settings.gateway_read_back_bytes_max
        assert old.place == (0, begins[0])

    on_a_log(tmp_path, story, gateway_read_back_bytes_max=100_000)


def test_a_reader_that_hears_nothing_is_given_up(tmp_path: Path) -> None:
    class Beyond(Faulty):
        async def end_positions(self, topic: str) -> dict[int, int]:
            return {0: 1_000_000}

        async def read(self, topic: str, positions: object) -> object:  # type: ignore[override]
            reader = await super().read(topic, positions)  # type: ignore[arg-type]
            return Silent(reader)

    class Silent:
        def __init__(self, reader: object) -> None:
            self._reader = reader
            self.silent_s = 1e6

        def __getattr__(self, name: str) -> object:
            return getattr(self._reader, name)

    async def story(log: Faulty, _: Passes, settings: Settings) -> None:
        begins = await written(log, settings, turns=1)
        with pytest.raises(LogAway, match="silent"):
            await Passes(settings, Beyond(log)).read_on(unread(0, begins[0]))

    on_a_log(tmp_path, story)


def test_who_waits_when_the_gateway_goes_down_hears_of_it(tmp_path: Path) -> None:
    async def story(log: Faulty, passes: Passes, settings: Settings) -> None:
        begins = await written(log, settings, turns=1)
        waiting = asyncio.create_task(passes.read_on(unread(0, begins[0])))
        await asyncio.sleep(0)
        await passes.close()
        with pytest.raises(LogAway):
            await waiting

    on_a_log(tmp_path, story)
