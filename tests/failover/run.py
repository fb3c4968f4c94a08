"""`make chaos-gateway SESSIONS=100 KILLS=10`: gateways and processors die, sessions go on.

    100 agents on three SDKs ──► relay ──► two gateways, one is killed, again and again
                                              └──► Kafka ──► two processors, killed as well

A gateway is killed with `kill -9` while calls run, and started again at its address; meanwhile
the other takes over its sessions, which it may never have seen. The run is good if no agent
gave up, all records are what the core gives for the turns topic, and every answer whose end a
client saw trains, in the tokens that were sampled.

How long clients wait is printed. A call that is cut waits for its SDK or its agent to ask again
(0.3 to 1 s), for the session to be read from the log, and for the engine to answer from the
beginning; one that is asked later waits for the log and the engine. Beside it stands what any
other answer takes, and what else this machine did: the gateway and the processor that start again
work on the same processors as everybody.

Exit codes: 0 good; 1 not.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from schemas import codec
from schemas.events import Event
from streams.adapters.client import AsyncSession, Turnstream
from streams.log.client_logs import silence_client_logs
from streams.log.kafka import KafkaLog
from tests.adapters.gateway.agents_kinds import KINDS
from tests.chaos.arena import Arena, short_settings
from tests.chaos.leash import ended_by_sigterm
from tests.failover.judging import Fate, judged, outcome_from
from tests.failover.machine import Machine
from tests.failover.processes import (
    CONTROL_KEY,
    Engine,
    GatewayProcess,
    engine,
    gateways,
)
from tests.failover.relay import Relay
from tests.failover.talking import Walker, numbered, walker
from tests.kafka.broker import Broker
from tests.kafka.entries import everything

WORKERS = 2
OPENED_AT_ONCE = 10
SECONDS_EACH = 40.0
"""For a kill and the start after it, at most: the script must not run out of answers."""


Killed = tuple[float, str, frozenset[str]]
"""When, which gateway, and the keys of the sessions that were with it."""


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    sessions: int
    kills: int
    seed: int = 1
    rest_s: float = 3.0
    """Between an answer and the next question, on average."""
    least: int = 3
    """Answers of a session."""


@dataclass
class Waits:
    """Seconds until an answer's end."""

    cut_s: list[float] = field(default_factory=list)
    """From the kill on, of calls that were under way."""
    later_s: list[float] = field(default_factory=list)
    """The first one after a kill, asked when the gateway was dead."""
    others_s: list[float] = field(default_factory=list)

    @property
    def firsts_s(self) -> list[float]:
        """After a kill."""
        return self.cut_s + self.later_s


@dataclass
class Run:
    """One run, and what came of it."""

    arena: Arena
    given: Engine
    gateways: list[GatewayProcess]
    plan: Plan
    walkers: list[Walker] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    killed: list[Killed] = field(default_factory=list)
    fate: Fate = field(default_factory=Fate)
    differences: dict[str, list[str]] = field(default_factory=dict)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._dice = Random(f"failover {self.plan.seed}")

    async def whole(self) -> None:
        """All of it."""
        for gateway in self.gateways:
            gateway.start()
        self.arena.crew.supervise(WORKERS)
        await asyncio.gather(*(gateway.listening() for gateway in self.gateways))
        async with Relay([gateway.port for gateway in self.gateways]).listening() as relay:
            room = asyncio.Semaphore(OPENED_AT_ONCE)
            opened = await asyncio.gather(
                *(self._opened(number, relay, room) for number in range(self.plan.sessions))
            )
            agents = [
                asyncio.create_task(self._agent(one, session, room)) for one, session in opened
            ]
            try:
                await self._kill_all(relay)
            finally:
                self.enough.set()
                ends = await asyncio.gather(*agents, return_exceptions=True)
            self.failed = [repr(end) for end in ends if end is not None]
        await self.arena.drained(WORKERS)
        await self.arena.all_closed(WORKERS)
        await self.arena.crew.terminate_all()
        await self._judge()

    async def _opened(
        self, number: int, relay: Relay, room: asyncio.Semaphore
    ) -> tuple[Walker, AsyncSession]:
        kind, stream = list(KINDS)[number % len(KINDS)], number // len(KINDS) % 2 == 1
        control = Turnstream(relay.url, CONTROL_KEY)
        async with room:
            session = await control.session(session_id=f"{kind}-{number}").__aenter__()
        opened = {"session_id": session.session_id, "key": session.key}
        self.walkers.append(walker(relay.url, opened, kind, stream=stream))
        return self.walkers[-1], session

    async def _agent(self, one: Walker, session: AsyncSession, room: asyncio.Semaphore) -> None:
        try:
            await one.run(self.plan.least, self.enough, self.plan.rest_s)
        finally:
            await one.close()
        async with room:
            await session.end(reward=1.0)

    async def _kill_all(self, relay: Relay) -> None:
        crew = self.arena.crew
        for number in range(self.plan.kills):
            await asyncio.sleep(self._dice.uniform(1.0, 2.0) * self.plan.rest_s)
            gateway = self.gateways[number % len(self.gateways)]
            there = frozenset(key for key, port in relay.at.items() if port == gateway.port)
            gateway.kill()
            self.killed.append((time.monotonic(), gateway.name, there))
            self._dice.choice(crew.able).kill()
            crew.supervise(WORKERS)
            if number + 1 < self.plan.kills:  # after the last one the other has to do
                gateway.start()
                await gateway.listening()
        await asyncio.sleep(self.plan.rest_s)

    async def _judge(self) -> None:
        arena = self.arena
        self.differences = (await arena.judged()).differences
        async with KafkaLog(arena.settings) as log:
            entries = await everything(log, arena.settings.turns_topic)
        records = [codec.from_msgpack(entry.value or b"") for entry in entries]
        events = [record for record in records if isinstance(record, Event)]
        sampled = self.given.sampled_by_session()
        for one in self.walkers:
            outcome = outcome_from(events, arena.found.records, one.session_id)
            seen = [asked.number for asked in one.asked]
            self.fate.add(judged(outcome, sampled[one.session_id], seen))

    def waits(self) -> Waits:
        """How long clients waited for each answer."""
        return waits_of(self.killed, self.walkers)

    def report(self) -> list[str]:
        fate, waits = self.fate, self.waits()
        starts = [s for gateway in self.gateways for s in gateway.starts_s]
        broken = sum(len(one.faults) for one in self.walkers)
        return [
            f"sessions {len(self.walkers)}, agent sessions failed {len(self.failed)}",
            f"gateways killed {len(self.killed)}, processors started "
            f"{len(self.arena.crew.started)} for {WORKERS}",
            f"answers seen to their end {fate.seen}, in the log {fate.turns}; "
            f"cut by a kill and not in the log {fate.cut}; "
            f"in the log and never seen {fate.unseen}, of which train {fate.unseen_trained}",
            f"attached: {', '.join(f'{name} {n}' for name, n in sorted(fate.attached.items()))}",
            f"streams that broke under an agent {broken}",
            f"first answer after a kill: {spread(waits.firsts_s)}",
            f"  to a call that was cut: {spread(waits.cut_s)}",
            f"  to one asked later: {spread(waits.later_s)}",
            f"any other answer: {spread(waits.others_s)}",
            f"a gateway listens: {spread(starts)} after its start",
            *(f"FAILED: {line}" for line in self.failed),
            *(f"ENDED BY ITSELF: {line}" for line in self.arena.crew.unexpected),
            *(f"WRONG: {line}" for line in fate.wrong),
            *(f"DIFFERENT: {name}: {found[:5]}" for name, found in self.differences.items()),
        ]

    @property
    def good(self) -> bool:
        unasked = self.arena.crew.unexpected
        return not (self.failed or self.fate.wrong or self.differences or unasked)


def waits_of(killed: Iterable[Killed], walkers: Sequence[Walker]) -> Waits:
    """How long clients waited for each answer."""
    found = Waits()
    firsts: set[int] = set()
    for killed_s, _, there in killed:
        for one in walkers:
            after = (asked for asked in one.asked if asked.ended_s > killed_s)
            first = next(after, None)
            if one.key in there and first is not None:
                firsts.add(id(first))
                cut = first.began_s < killed_s
                waited_s = first.ended_s - max(first.began_s, killed_s)
                (found.cut_s if cut else found.later_s).append(waited_s)
    asked = (asked for one in walkers for asked in one.asked)
    found.others_s += [each.ended_s - each.began_s for each in asked if id(each) not in firsts]
    return found


def spread(seconds: list[float]) -> str:
    """The middle and the end of what was measured."""
    if not seconds:
        return "none"
    values_s = sorted(seconds)
    p95 = values_s[min(len(values_s) - 1, int(0.95 * len(values_s)))]
    middle = statistics.median(values_s)
    return f"p50 {middle:.2f} s, p95 {p95:.2f} s, max {values_s[-1]:.2f} s, of {len(values_s)}"


async def played(folder: Path, broker: Broker, plan: Plan) -> Run:
    """A run to its end."""
    settings = short_settings([broker], idle_limit_s=300.0)
    answers = int(SECONDS_EACH * (plan.kills + 2) * plan.sessions / plan.rest_s)
    with (
        engine(folder / "engine", numbered(answers)) as given,
        gateways(folder / "gateways", "ab", settings, given.url) as processes,
    ):
        async with Arena(folder / "workers", [broker], settings, plan.seed) as arena:
            run = Run(arena, given, processes, plan)
            await run.whole()
            return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.failover", description=__doc__)
    parser.add_argument("sessions", type=int)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--rest", type=float, default=3.0, help="seconds between two questions")
    options = parser.parse_args()
    plan = Plan(options.sessions, options.kills, options.seed, options.rest)
    silence_client_logs()
    folder = Path(tempfile.mkdtemp(prefix="turnstream-failover-"))
    machine = Machine()
    with ended_by_sigterm(), Broker(folder / "broker") as broker:
        run = asyncio.run(played(folder, broker, plan))
    for line in (*run.report(), machine.report()):
        sys.stdout.write(f"{line}\n")
    if run.good:
        shutil.rmtree(folder)
    else:
        sys.stdout.write(f"what the processes said: {folder}\n")
    sys.exit(0 if run.good else 1)
