"""What is done to every part of the pipeline, each kind by its name.

    gateways      kill -9, SIGSTOP, SIGTERM; killed while the weights change
    processors    kill -9, also at a marker; SIGSTOP, SIGTERM, join, leave
    broker        kill -9, frozen for 5 to 20 s: the log is out
    trainer       kill -9 anywhere, at chosen places; stopped: a slow consumer
    connections   of agents, of the engine: all cut at once
    the log       takes events once more that it has

Invariant: each fault is bounded in time and leaves everything running.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from schemas import codec
from schemas.events import Purge
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from tests.chaos import faults as processors
from tests.chaos.arena import Arena, Stuck
from tests.chaos.oracle import read_to_end
from tests.failover.processes import GatewayProcess
from tests.failover.relay import Relay
from tests.failover.run import Killed
from tests.kafka.broker import Broker
from tests.under_fire import training
from tests.under_fire.lives import Lives
from tests.under_fire.standstill import Standstill

WORKERS = 3
GATEWAY_KILL = "gateway kill -9"
GATEWAY_STOP = "gateway SIGSTOP"
GATEWAY_TERM = "gateway SIGTERM"
UPDATE = "update while a gateway is dead"
BROKER_FROZEN = "broker frozen"
TRAINER_KILL = "trainer kill -9"
TRAINER_COMMIT = f"trainer kill -9 {training.BEFORE_COMMIT}"
TRAINER_SAVE = f"trainer kill -9 {training.BEFORE_SAVE}"
TRAINER_PAUSED = f"trainer kill -9 {training.PAUSED}"
TRAINER_SLOW = "trainer SIGSTOP"
CUT_AGENTS = "connections of agents cut"
CUT_ENGINE = "connections of the engine cut"
AGAIN = "events delivered again"

OF_PROCESSORS = (
    processors.KILL,
    processors.STOP,
    processors.TERM,
    processors.JOIN,
    processors.LEAVE,
    processors.MARKER,
)
KINDS = (
    GATEWAY_KILL,
    GATEWAY_STOP,
    GATEWAY_TERM,
    UPDATE,
    *OF_PROCESSORS,
    processors.BROKER_KILL,
    BROKER_FROZEN,
    TRAINER_KILL,
    TRAINER_COMMIT,
    TRAINER_SAVE,
    TRAINER_PAUSED,
    TRAINER_SLOW,
    CUT_AGENTS,
    CUT_ENGINE,
    AGAIN,
)
DOOMED_SECONDS_MAX = 60.0
UPDATE_SECONDS_MAX = 60.0
MOVING_SECONDS_MAX = 90.0
MOVING_S = 4.0
"""A partition that stood still for less moves: commits and looks come every second or so."""
FROZEN_S = (5.0, 20.0)
AGAIN_ENTRIES = 12


@dataclass
class Parts:
    """What can be hurt."""

    arena: Arena
    broker: Broker
    gateways: list[GatewayProcess]
    agents: Relay
    """Before the gateways."""
    engine: Relay
    """Between gateways and engine."""
    trainer: Lives


@dataclass
class Injected:
    """One fault, and how long partitions stood still."""

    kind: str
    took_s: float
    standstill_s: float


@dataclass
class Faults:
    """Hurts all parts, by dice."""

    parts: Parts
    dice: Random
    standstill: Standstill
    done: list[Injected] = field(default_factory=list)
    killed: list[Killed] = field(default_factory=list)
    """Gateways."""
    wrong_exits: list[str] = field(default_factory=list)
    cut: int = 0
    repeated: int = 0

    def __post_init__(self) -> None:
        self._processors = processors.Faults(self.parts.arena, self.dice, WORKERS)

    async def inject(self, kind: str) -> Injected | None:
        """Do it, and wait until everything moves; None: it could not be done now."""
        parts, began_s = self.parts, time.monotonic()
        acts: dict[str, Callable[[], Awaitable[bool]]] = {
            GATEWAY_KILL: self._kill_gateway,
            GATEWAY_STOP: self._stop_gateway,
            GATEWAY_TERM: self._terminate_gateway,
            UPDATE: self._update_without_one,
            BROKER_FROZEN: self._freeze,
            TRAINER_KILL: self._kill_trainer,
            TRAINER_COMMIT: lambda: self._doom(training.BEFORE_COMMIT),
            TRAINER_SAVE: lambda: self._doom(training.BEFORE_SAVE),
            TRAINER_PAUSED: lambda: self._doom(training.PAUSED),
            TRAINER_SLOW: self._stop_trainer,
            CUT_AGENTS: lambda: self._cut(parts.agents),
            CUT_ENGINE: lambda: self._cut(parts.engine),
            AGAIN: self._deliver_again,
        }
        if kind in acts:
            happened = await acts[kind]()
        else:
            happened = await self._processors.act(kind)
            self.wrong_exits += self._processors.wrong_exits
            self._processors.wrong_exits.clear()
        took_s = time.monotonic() - began_s
        await self._settled(kind, began_s)
        if not happened:
            return None
        injected = Injected(kind, took_s, self.standstill.longest_s(began_s))
        self.done.append(injected)
        return injected

    async def _settled(self, kind: str, began_s: float) -> None:
        """Everything runs and every partition moves; what takes over has had its time."""
        parts = self.parts
        if kind in OF_PROCESSORS:
            timeout_s = parts.arena.settings.processor_session_timeout_s
            await asyncio.sleep(max(0.0, began_s + timeout_s + MOVING_S - time.monotonic()))
        deadline_s = time.monotonic() + MOVING_SECONDS_MAX
        while not await self.standstill.over(MOVING_S, 2):
            parts.arena.crew.supervise(WORKERS)
            if time.monotonic() > deadline_s:
                lags = parts.arena.watch.lags
                raise Stuck(f"after {kind}: lags {lags}\n{parts.arena.last_words()}")
        parts.arena.crew.supervise(WORKERS)
        parts.trainer.supervise()
        for gateway in parts.gateways:
            if not gateway.alive:
                last = gateway.said[-600:]
                self.wrong_exits.append(f"gateway {gateway.name} by itself after {kind}: {last}")
                gateway.start()
                await gateway.listening()

    async def _pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self.dice.uniform(low_s, high_s))

    # --- gateways --------------------------------------------------------------------------------

    def _kill_one(self) -> GatewayProcess:
        gateway, at = self.dice.choice(self.parts.gateways), self.parts.agents.at
        there = frozenset(key for key, port in at.items() if port == gateway.port)
        gateway.kill()
        self.killed.append((time.monotonic(), gateway.name, there))
        return gateway

    async def _kill_gateway(self) -> bool:
        gateway = self._kill_one()
        await self._pause(0.2, 3)
        gateway.start()
        await gateway.listening()
        return True

    async def _stop_gateway(self) -> bool:
        gateway = self.dice.choice(self.parts.gateways)
        gateway.stop()
        try:
            await self._pause(2, 8)
        finally:
            gateway.go_on()
        return True

    async def _terminate_gateway(self) -> bool:
        gateway = self.dice.choice(self.parts.gateways)
        code = await gateway.terminate()
        if code != 0:
            self.wrong_exits.append(f"gateway {gateway.name} SIGTERM: {code}")
        gateway.start()
        await gateway.listening()
        return True

    async def _update_without_one(self) -> bool:
        trainer = self.parts.trainer
        before = trainer.history().updates
        gateway = self._kill_one()
        try:
            return await _until(lambda: trainer.history().updates > before, UPDATE_SECONDS_MAX)
        finally:
            gateway.start()
            await gateway.listening()

    # --- broker ----------------------------------------------------------------------------------

    async def _freeze(self) -> bool:
        self.parts.broker.pause()
        try:
            await self._pause(*FROZEN_S)
        finally:
            self.parts.broker.resume()
        return True

    async def _deliver_again(self) -> bool:
        """The newest events of every partition, sessions closed meanwhile included."""
        settings = self.parts.arena.settings
        topic = settings.turns_topic
        async with KafkaLog(dataclasses.replace(settings, request_timeout_s=60.0)) as log:
            ends, starts = await log.end_positions(topic), await log.start_positions(topic)
            places = {p: max(starts[p], end - AGAIN_ENTRIES) for p, end in ends.items()}
            reader = await log.read(topic, places)
            try:
                entries = [entry async for entry in read_to_end(log, topic, reader)]
            finally:
                await reader.close()
            # A purge is of its partition, not of a key.
            again = [
                e for e in entries if not isinstance(codec.from_msgpack(e.value or b""), Purge)
            ]
            sent = [await log.send(Outgoing(topic=topic, key=e.key, value=e.value)) for e in again]
            for one in sent:
                await one
        self.repeated += len(again)
        return bool(again)

    # --- trainer ---------------------------------------------------------------------------------

    async def _kill_trainer(self) -> bool:
        self.parts.trainer.now.kill()
        await self._pause(0.2, 3)
        return True

    async def _doom(self, where: str) -> bool:
        life = self.parts.trainer.now
        life.doom(where)
        died = await life.ended(DOOMED_SECONDS_MAX)
        life.spare()
        return died

    async def _stop_trainer(self) -> bool:
        life = self.parts.trainer.now
        life.stop()
        try:
            await self._pause(5, 12)
        finally:
            life.go_on()
        return True

    # --- connections -----------------------------------------------------------------------------

    async def _cut(self, relay: Relay) -> bool:
        cut = relay.cut()
        self.cut += cut
        return cut > 0


def never_done(kinds: Sequence[str], done: Iterable[str], least: int) -> list[str]:
    """Kinds that could not be done even once, where there was a turn for each."""
    return sorted(set(kinds) - set(done)) if least >= len(kinds) else []


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.2)
    return True
