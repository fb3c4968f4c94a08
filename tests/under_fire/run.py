"""`make chaos-all SESSIONS=1000 FAULTS=50 SEED=1`: the whole pipeline while everything dies.

    agents ──► relay ──► 2 gateways ──► relay ──► engine, its weights changed in the middle of turns
                             └──► Kafka ──► 3 processors ──► Kafka ──► trainer ──► pause, resume

Faults of every kind come over all of it, one after the other, until there were so many and so
many sessions were begun. Afterwards everything is held against the pure core, the engine's
journal and the clients' eyes (`judging`).

Exit codes: 0 good; 1 something is lost, wrong or failed, or took longer to recover than promised.
"""

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from streams.log.client_logs import silence_client_logs
from streams.settings import Settings
from tests.chaos.arena import Arena, Stuck, short_settings
from tests.chaos.leash import ended_by_sigterm
from tests.chaos.run import say
from tests.failover.machine import Machine
from tests.failover.processes import CONTROL_KEY, Engine, engine, gateways
from tests.failover.relay import Relay
from tests.failover.run import Waits, spread, waits_of
from tests.failover.talking import numbered
from tests.kafka.broker import Broker
from tests.under_fire.faults import KINDS, OF_PROCESSORS, WORKERS, Faults, Parts, never_done
from tests.under_fire.judging import Judgement, judge
from tests.under_fire.lives import History, Lives
from tests.under_fire.rollouts import RUN, TURNS_MAX, Rollouts
from tests.under_fire.standstill import Standstill
from tests.under_fire.training import IGNORES_CHECKPOINT

GATEWAY_P95_S = 5.0
PROCESSOR_MORE_S = 2.0
"""Beyond the session timeout."""
GROUPS_A_STEP = 2
BUSY_SECONDS_MAX = 120.0
HASTY_GATEWAY = "gateway-answers-before-the-acknowledgement"


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    sessions: int
    faults: int
    seed: int = 1
    kinds: tuple[str, ...] = KINDS
    at_once: int = 60
    rest_s: float = 3.0
    """Between an answer and the next question, on average."""
    turns_max: int = TURNS_MAX
    variant: str = ""
    """Something built wrong on purpose."""


@dataclass
class Run:
    """One run, and what came of it."""

    parts: Parts
    given: Engine
    plan: Plan
    rollouts: Rollouts
    faults: Faults
    history: History = field(default_factory=History)
    judgement: Judgement | None = None
    stuck: str = ""
    took_s: float = 0.0

    async def whole(self) -> None:
        """All of it; what does not get on any more is told of."""
        began_s = time.monotonic()
        standing = asyncio.create_task(self.faults.standstill.run())
        try:
            await self._started()
            await self._under_fire()
            await self._finished()
        except Stuck as stuck:
            self.stuck = str(stuck)
        finally:
            standing.cancel()
            self.took_s = time.monotonic() - began_s

    async def _started(self) -> None:
        parts = self.parts
        for gateway in parts.gateways:
            gateway.start()
        parts.arena.crew.supervise(WORKERS)
        await asyncio.gather(*(gateway.listening() for gateway in parts.gateways))
        parts.trainer.supervise()

    async def _under_fire(self) -> None:
        enough = asyncio.Event()
        agents = asyncio.create_task(self.rollouts.run(self.plan.sessions, enough))
        try:
            await self._inject(agents)
            enough.set()
            while not agents.done():
                self.parts.arena.crew.supervise(WORKERS)
                self.parts.trainer.supervise()
                await asyncio.wait({agents}, timeout=1.0)
            agents.result()
        finally:
            agents.cancel()
            await asyncio.gather(agents, return_exceptions=True)

    async def _inject(self, agents: "asyncio.Task[None]") -> None:
        plan, dice, left = self.plan, self.faults.dice, list[str]()
        await self._busy(agents)
        while len(self.faults.done) < plan.faults or self.rollouts.begun < plan.sessions:
            if not left:
                left = dice.sample(plan.kinds, len(plan.kinds))
            kind = left.pop()
            done = await self.faults.inject(kind)
            if done is None and left:  # later
                left.insert(0, kind)
            moved = f"partitions stood still {done.standstill_s:.1f} s" if done else "not possible"
            say(
                f"{len(self.faults.done)} {kind}: {moved}; sessions begun {self.rollouts.begun}, "
                f"ended {self.rollouts.ended}, failed {len(self.rollouts.failed)}"
            )
            await asyncio.sleep(dice.uniform(0.5, 1.5) * plan.rest_s)

    async def _busy(self, agents: "asyncio.Task[None]") -> None:
        """Until agents are in the middle of it."""
        deadline_s = time.monotonic() + BUSY_SECONDS_MAX
        while sum(len(one.asked) for one in self.rollouts.walkers) < self.plan.at_once:
            if agents.done() or time.monotonic() > deadline_s:
                raise Stuck(f"{self.rollouts.begun} agents, and hardly an answer")
            await asyncio.sleep(0.1)

    async def _finished(self) -> None:
        parts = self.parts
        await parts.arena.drained(WORKERS)
        await parts.arena.all_closed(WORKERS)
        await parts.trainer.finish()
        await parts.arena.crew.terminate_all()
        self.history = parts.trainer.history()
        self.judgement = await judge(
            parts.arena, self.given, self.rollouts.walkers, self.rollouts.rewards, self.history
        )

    # --- what came of it -------------------------------------------------------------------------

    @property
    def wrong(self) -> list[str]:
        """All that must not be; nothing about time."""
        return [
            *(f"STUCK: {line}" for line in [self.stuck] if line),
            *(f"SESSION FAILED: {line}" for line in self.rollouts.failed),
            *(f"WRONG: {line}" for line in (self.judgement.wrong if self.judgement else ())),
            *(f"WRONG EXIT: {line}" for line in self.faults.wrong_exits),
            *(f"TRAINER ENDED BY ITSELF: {line}" for line in self.parts.trainer.unexpected),
            *(f"FAULT NEVER DONE: {line}" for line in self._never_done()),
        ]

    def _never_done(self) -> list[str]:
        done = (fault.kind for fault in self.faults.done)
        return never_done(self.plan.kinds, done, self.plan.faults)

    @property
    def too_slow(self) -> list[str]:
        """Recoveries beyond what is promised."""
        waits, stood = sorted(self.waits().firsts_s), self.standstills_s()
        most_s = self.parts.arena.settings.processor_session_timeout_s + PROCESSOR_MORE_S
        p95_s = waits[min(len(waits) - 1, int(0.95 * len(waits)))] if waits else 0.0
        # With fewer faults than kinds the only kill may fall where no agent asks any more.
        unmeasured = self.faults.killed and not waits and self.plan.faults >= len(self.plan.kinds)
        return [
            *(["first answers: none after a gateway's kill"] if unmeasured else []),
            *([f"first answers: p95 {p95_s:.2f} s"] if p95_s > GATEWAY_P95_S else []),
            *([f"processors: {stood[-1]:.2f} s"] if stood and stood[-1] > most_s else []),
        ]

    def waits(self) -> Waits:
        """How long clients waited for each answer."""
        return waits_of(self.faults.killed, self.rollouts.walkers)

    def standstills_s(self) -> list[float]:
        """Of the faults that processors had."""
        done = self.faults.done
        return sorted(fault.standstill_s for fault in done if fault.kind in OF_PROCESSORS)

    def report(self) -> list[str]:
        kinds = Counter(fault.kind for fault in self.faults.done)
        lines = [
            f"faults {len(self.faults.done)}: "
            + ", ".join(f"{kind} {kinds[kind]}" for kind in self.plan.kinds),
            f"sessions {self.rollouts.begun}, agent sessions failed {len(self.rollouts.failed)}",
            *(self._judged(self.judgement) if self.judgement else ()),
            *self._times(),
            # What is out of touch with the log for too long ends, to be started again.
            *(f"a processor ended by itself: {line}" for line in self.parts.arena.crew.unexpected),
        ]
        return lines + self.wrong + [f"TOO SLOW: {line}" for line in self.too_slow]

    def _judged(self, judgement: Judgement) -> list[str]:
        expected, fate = self.parts.arena.oracle.expected, judgement.fate
        trainer, walkers = self.parts.trainer, self.rollouts.walkers
        broken = sum(len(one.faults) for one in walkers)
        return [
            f"turns in the log {fate.turns}, seen to their end {fate.seen}; never seen "
            f"{fate.unseen}, of which train {fate.unseen_trained}; sampled and not in the log "
            f"{fate.cut}; attached {dict(sorted(fate.attached.items()))}",
            f"calls that broke under an agent {broken}; connections cut {self.faults.cut}, "
            f"events delivered again {self.faults.repeated}",
            f"samples {len(expected.samples)}, revisions {len(expected.revisions)}, "
            f"outcomes {len(expected.outcomes)}, events {expected.counts['events']}",
            *judgement.verdict.lines(),
            f"trained {judgement.samples_trained} samples in {len(self.history.steps)} steps, "
            f"{self.history.handed_out} batches handed out; lives of the trainer "
            f"{len(trainer.started)}, of which the log's outages ended {trainer.log_away}; "
            f"the last left out {self.history.dropped}",
            f"weight updates {self.history.updates}, versions sampled {judgement.versions}, "
            f"turns that went on over one {judgement.continued}",
        ]

    def _times(self) -> list[str]:
        waits = self.waits()
        starts = [s for gateway in self.parts.gateways for s in gateway.starts_s]
        timeout_s = self.parts.arena.settings.processor_session_timeout_s
        return [
            f"first answer after a gateway's kill: {spread(waits.firsts_s)}; of calls that it cut: "
            f"{spread(waits.cut_s)}",
            f"any other answer: {spread(waits.others_s)}",
            f"a gateway listens {spread(starts)} after its start",
            f"a partition stood still after a fault of processors (session timeout "
            f"{timeout_s:g} s): {spread(self.standstills_s())}",
            f"processors started {len(self.parts.arena.crew.started)} for {WORKERS}; "
            f"took {self.took_s:.0f} s",
        ]


def settings_for(broker: Broker) -> Settings:
    """Sessions end by themselves only if something is wrong."""
    return short_settings(
        [broker],
        idle_limit_s=600.0,
        reward_grace_s=600.0,
        processor_commit_interval_s=0.5,
        processor_heartbeat_interval_s=0.6,
    )


async def played(folder: Path, broker: Broker, plan: Plan) -> Run:
    """A run to its end."""
    settings = settings_for(broker)
    answers = 30 * (plan.sessions + 10 * plan.faults)
    async with contextlib.AsyncExitStack() as stack:
        given = stack.enter_context(engine(folder / "engine", numbered(answers)))
        to_engine = await stack.enter_async_context(Relay([_port(given.url)]).listening())
        behind = stack.enter_context(gateways(folder / "gateways", "ab", settings, to_engine.url))
        for gateway in behind:
            if plan.variant == HASTY_GATEWAY:
                gateway.turnstream = [sys.executable, "-m", "tests.under_fire.hasty_gateway"]
        ports = [gateway.port for gateway in behind]
        relay = await stack.enter_async_context(Relay(ports).listening())
        arena = await stack.enter_async_context(
            Arena(folder / "workers", [broker], settings, plan.seed)
        )
        arena.crew.environ["CHAOS_PROMPT"] = "yes"
        spec = _spec(plan, relay.url, given.url)
        trainer = stack.enter_context(contextlib.closing(Lives(folder / "trainer", settings, spec)))
        parts = Parts(arena, broker, behind, relay, to_engine, trainer)
        rollouts = Rollouts(relay.url, plan.seed, plan.at_once, plan.rest_s, plan.turns_max)
        dice = Random(f"under fire {plan.seed}")
        run = Run(parts, given, plan, rollouts, Faults(parts, dice, Standstill(arena.watch)))
        await run.whole()
        return run


def _spec(plan: Plan, gateway_url: str, engine_url: str) -> dict[str, Any]:
    options = {
        "run_id": RUN,
        "batch_groups": GROUPS_A_STEP,
        "advantages": "grpo",
        "start": "beginning",  # a life without a checkpoint has trained nothing
        "progress": False,
    }
    addresses = {"gateway_url": gateway_url, "engine_url": engine_url, "control_key": CONTROL_KEY}
    return {"options": options, "step_s": 0.3, "variant": plan.variant, **addresses}


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.under_fire", description=__doc__)
    parser.add_argument("sessions", type=int, help="at least; faults may take longer than these")
    parser.add_argument("faults", type=int, help="at least; sessions may take longer than these")
    parser.add_argument("seed", type=int, help="of the faults and the sessions")
    parser.add_argument("--at-once", type=int, default=60, help="sessions open at a time")
    parser.add_argument("--rest", type=float, default=3.0, help="seconds between two questions")
    wrong = (HASTY_GATEWAY, IGNORES_CHECKPOINT)
    parser.add_argument("--variant", choices=wrong, default="", help="build it wrong on purpose")
    options = parser.parse_args()
    plan = Plan(
        options.sessions,
        options.faults,
        options.seed,
        at_once=options.at_once,
        rest_s=options.rest,
        variant=options.variant,
    )
    silence_client_logs()
    folder, machine = Path(tempfile.mkdtemp(prefix="turnstream-under-fire-")), Machine()
    with ended_by_sigterm(), Broker(folder / "broker") as broker:
        run = asyncio.run(played(folder, broker, plan))
    for line in (*run.report(), machine.report()):
        say(line)
    bad = bool(run.wrong or run.too_slow)
    if bad:
        say(f"what the processes said: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(1 if bad else 0)
