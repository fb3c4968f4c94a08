"""`make soak MINUTES=60 SEED=1`: the whole path at a steady rate; nothing grows, waits or is lost.

    agents ──► 2 gateways ──► engine's stand-in
                   └──► Kafka ──► 3 processors ──► Kafka ──► trainer ──► new weights
                                                     └─────► sink

What a deployment keeps for days is kept for a tenth of the run here, so that retention, compaction
and the purge of markers come often enough for memory and disk to have a level. When the agents
have gone, everything has to be closed, trained and committed.

Exit codes: 0 all holds; 1 something does not; 3 the run does not count: it took too long, or
partitions moved between workers.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas import codec
from schemas.events import Turn
from streams.errors import LogError
from streams.log.client_logs import silence_client_logs
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.chaos.arena import environ_of
from tests.chaos.leash import ended_by_sigterm
from tests.cli.command import turnstream
from tests.cli.up_process import started
from tests.failover.machine import Machine
from tests.failover.processes import CONTROL_KEY, engine, gateways
from tests.kafka.broker import Broker
from tests.soak import disk, flat
from tests.soak.agents import RUN, Agents, script
from tests.soak.arena import Arena, soak_settings
from tests.soak.markers import EXIT_BROKEN, EXIT_DOES_NOT_COUNT, WORKERS, say
from tests.soak.memory import own_bytes
from tests.soak.outcomes import Outcomes, differences
from tests.soak.workers import Crew, Ended
from tests.under_fire.lives import Lives

MINUTES_MIN = 2.0
LOOK_EVERY_S = 30.0
LOOKS_MIN = 60
LATE_SECONDS_MAX = 120.0
"""For what is still under way when a time is over."""
KEPT_SHARE = 1 / 10
KEPT_SECONDS_MIN = 60.0
HEAP_MB = 192
BROKER = (
    # As often as the times are short.
    "log.retention.check.interval.ms=5000",
    "log.segment.delete.delay.ms=1000",
)


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    minutes: float
    seed: int = 1
    per_s: float = 1.0

    @property
    def seconds(self) -> float:
        return self.minutes * 60

    @property
    def look_every_s(self) -> float:
        return min(LOOK_EVERY_S, self.seconds / LOOKS_MIN)


@dataclass
class Soak:
    """One run, and what it found."""

    plan: Plan
    arena: Arena
    agents: Agents
    trainer: Lives
    data: Path
    traces: Path
    pids: Mapping[str, int]
    outcomes: Outcomes = field(default_factory=Outcomes)
    looks: list[flat.Look] = field(default_factory=list)
    disks: list[dict[str, int]] = field(default_factory=list)
    held: set[tuple[float, ...]] = field(default_factory=set)
    """How partitions were shared and how often they were loaded, since the warm-up."""
    lags: dict[str, int] = field(default_factory=dict)
    topics: list[disk.Topic] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    took_s: float = 0.0

    async def run(self) -> None:
        settings, log = self.arena.settings, self.arena.log
        following = asyncio.create_task(self.outcomes.follow(log, settings.samples_topic))
        try:
            await self._steady(following)
            await self._all_closed()
            await self.agents.one_group()
            await self._all_closed()
            await self._no_lag()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        self.wrong += await self._differences()

    # --- the steady part -------------------------------------------------------------------------

    async def _steady(self, following: "asyncio.Task[None]") -> None:
        began_s, enough = time.monotonic(), asyncio.Event()
        agents = asyncio.create_task(self.agents.come(enough))
        watching = asyncio.create_task(self._watch(began_s))
        others = {watching, following}
        try:
            await _unless_ended({agents, *others}, self.plan.seconds)
            self.took_s = time.monotonic() - began_s
            await self._compare_disk()  # while agents come: retention goes on without them
            enough.set()
            watching.cancel()
            async with asyncio.timeout(LATE_SECONDS_MAX):
                await agents
        finally:
            for task in (agents, watching):
                task.cancel()
            await asyncio.gather(agents, watching, return_exceptions=True)

    async def _watch(self, began_s: float) -> None:
        told_s = began_s
        while True:
            now_s = time.monotonic()
            at = (now_s - began_s) / self.plan.seconds
            self.looks.append(
                flat.Look(at, {name: _own(name, pid) for name, pid in self.pids.items()})
            )
            names = [topic.name for topic in self.topics]
            self.disks.append({name: disk.on_disk(self.data, name) for name in names})
            if at >= flat.WARM_UP:
                told = await self.arena.crew.metrics()
                self.held.add(tuple(w[n] for w in told for n in ("partitions", "recoveries")))
            if now_s - told_s >= self.plan.seconds * KEPT_SHARE:
                told_s = now_s
                say(
                    f"{at:.0%}: sessions begun {len(self.agents.begun)}, closed "
                    f"{len(self.outcomes.closed)}, turns {self.agents.turns}, "
                    f"failed {len(self.agents.failed)}"
                )
            await asyncio.sleep(self.plan.look_every_s)

    # --- the end ---------------------------------------------------------------------------------

    async def _all_closed(self) -> None:
        """Also those that have to expire; what is not in time is told of later."""
        until_s = time.monotonic() + self.arena.settings.idle_limit_s + LATE_SECONDS_MAX
        while time.monotonic() < until_s:
            if self.outcomes.closed.keys() >= self.agents.begun:
                return
            await asyncio.sleep(0.5)

    async def _no_lag(self) -> None:
        settings, log = self.arena.settings, self.arena.log
        groups = {
            "processors": (settings.processor_id, settings.turns_topic),
            "trainer": (settings.trainer_group_of(RUN), settings.samples_topic),
            "sink": (f"{settings.topic_prefix}-sink-jsonl", settings.traces_topic),
        }
        until_s = time.monotonic() + LATE_SECONDS_MAX
        while True:
            self.lags = {
                name: sum((await log.lag(*asked)).values()) for name, asked in groups.items()
            }
            if not any(self.lags.values()) or time.monotonic() > until_s:
                return
            await asyncio.sleep(0.5)

    async def _differences(self) -> list[str]:
        steps = self.trainer.history().steps
        trained = [sample_id for ids in steps.values() for sample_id in ids]
        agents, log = self.agents, self.arena.log
        letters, due = await self.arena.refused(), len(self.outcomes.traced)
        told = sum((await log.end_positions(self.arena.settings.traces_topic)).values())
        lines = sum(len(path.read_bytes().splitlines()) for path in self.traces.glob("*.jsonl"))
        say(
            f"sessions begun {len(agents.begun)}, closed {sum(self.outcomes.closed.values())}, "
            f"expired {len(self.outcomes.expired)}; samples {len(self.outcomes.samples)}, trained "
            f"{len(trained)} in {len(steps)} steps; traces {told}, written {lines}; dead letters "
            f"{letters}; lag at the end {self.lags}"
        )
        return [
            *agents.failed,
            *differences(agents.begun, agents.silent, self.outcomes, trained),
            *([f"dead letters: {letters}"] if letters else []),
            *(
                [f"traces: of {due} sessions, {told} in the log, {lines} in files"]
                if not due == told == lines
                else []
            ),
            *(f"lag of {name}: {lag}" for name, lag in self.lags.items() if lag),
        ]

    async def _compare_disk(self) -> None:
        written, turns = dict.fromkeys((topic.name for topic in self.topics), 0), 0
        settings = self.arena.settings
        for name in written:
            async for entry in self.arena.everything(name):
                written[name] += len(entry.key or b"") + len(entry.value or b"")
                if name == settings.turns_topic:
                    turns += isinstance(codec.from_msgpack(entry.value or b""), Turn)
        expected = dataclasses.replace(
            settings,
            expected_turns_per_s=round(self.agents.turns / self.took_s, 2),
            expected_turn_bytes=round(written[settings.turns_topic] / max(1, turns)),
        )
        ran = turnstream("topics", "--check", given=b"", **environ_of(expected))
        if ran.code:
            self.wrong.append(f"turnstream topics --check: exit {ran.code}: {ran.err}")
        said = disk.said_in(ran.out)
        say(ran.out.splitlines()[-1])
        half = self.disks[len(self.disks) // 2 :]
        self.topics = [
            disk.Topic(name, said[name], size, max(look[name] for look in half))
            for name, size in written.items()
        ]

    def code(self) -> int:
        """Says all of it."""
        found = flat.courses(self.looks, self.plan.minutes)
        for line in (*flat.table(found), *disk.table(self.topics)):
            say(line)
        wrong = [
            *self.wrong,
            *(f"memory of {one.name} is not flat" for one in found if not one.flat),
            *disk.faults(self.topics),
        ]
        for line in wrong:
            say(f"WRONG: {line}")
        if wrong:
            return EXIT_BROKEN
        if len(self.held) > 1 or not flat.enough(self.looks):
            say(f"does not count: {len(self.looks)} looks; partitions moved: {sorted(self.held)}")
            return EXIT_DOES_NOT_COUNT
        return 0


def settings_for(broker: Broker, plan: Plan) -> Settings:
    """Of a deployment, but for its times."""
    kept_s = max(KEPT_SECONDS_MIN, plan.seconds * KEPT_SHARE)
    names = ("turns", "samples", "traces", "dead_letters", "trained")
    return dataclasses.replace(
        soak_settings(broker),
        partitions=2 * WORKERS,
        # Ten readers that ask ten times a second would keep the broker busier than the agents do.
        fetch_wait_ms=500,
        trace_share=0.25,
        idle_limit_s=kept_s / 3,
        reward_grace_s=kept_s / 3,
        hard_limit_s=kept_s / 2,
        key_lifetime_s=kept_s / 2,
        marker_retention_s=kept_s,
        # Fewer than come during the warm-up of an hour: from then on the oldest are forgotten.
        gateway_sessions_held=256,
        sink_jsonl_file_s=10.0,
        **{f"retention_{name}_hours": kept_s / 3600 for name in names},  # type: ignore[arg-type]
    )


async def played(folder: Path, broker: Broker, plan: Plan) -> Soak:
    """A run to its end."""
    settings = settings_for(broker, plan)
    report = await create_topics(settings)
    async with contextlib.AsyncExitStack() as stack:
        given = stack.enter_context(engine(folder / "engine", script(), journal_keep=100))
        behind = stack.enter_context(gateways(folder / "gateways", "ab", settings, given.url))
        environ = environ_of(settings)
        crew = stack.enter_context(Crew(folder / "workers", environ, WORKERS))
        for gateway in behind:
            gateway.start()
        await asyncio.gather(*(gateway.listening() for gateway in behind))
        log = await stack.enter_async_context(KafkaLog(settings))
        arena = Arena(log, settings, crew)
        async with asyncio.timeout(LATE_SECONDS_MAX):
            await arena.assigned()
        traces = folder / "traces"
        place = ("sink", "jsonl", "--to", traces)
        sink = stack.enter_context(
            started(folder / "sink", *place, until="health and metrics on", **environ)
        )
        spec = {
            "options": {
                "run_id": RUN,
                "batch_groups": 1,
                "advantages": "grpo",
                "start": "beginning",
                "progress": False,
            },
            "step_s": 0.2,
            "gateway_url": behind[0].url,
            "engine_url": given.url,
            "control_key": CONTROL_KEY,
        }
        trainer = stack.enter_context(contextlib.closing(Lives(folder / "trainer", settings, spec)))
        pids = {
            **{f"gateway {one.name}": one.pids[-1] for one in behind},
            **{f"processor {one.name}": one.pid for one in crew.workers},
            "trainer": trainer.now.pid,
            "sink": sink.process.pid,
            "engine": given.pid,
            flat.BROKER: broker.pid,
        }
        agents = Agents([one.url for one in behind], plan.seed, plan.per_s)
        run = Soak(plan, arena, agents, trainer, broker.folder / "data", traces, pids)
        run.outcomes.trace_share = settings.traced_share
        run.topics = [disk.Topic(spec.name, 0, 0, 0) for spec in report.specs]
        await run.run()
        return run


async def _unless_ended(tasks: "set[asyncio.Task[None]]", seconds: float) -> None:
    """Wait; none of these ends by itself but with an error."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _own(name: str, pid: int) -> int:
    try:
        return own_bytes(pid)
    except OSError as error:
        raise Ended(f"{name} ended by itself") from error


async def _code(folder: Path, broker: Broker, plan: Plan) -> int:
    try:
        return (await played(folder, broker, plan)).code()
    except (TimeoutError, LogError) as error:
        say(f"not finished: {error!r}")
        return EXIT_DOES_NOT_COUNT
    except Ended as error:
        say(f"WRONG: {error}")
        return EXIT_BROKEN


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("minutes", type=float, help=f"at least {MINUTES_MIN:g}")
    parser.add_argument("seed", type=int, nargs="?", default=1, help="of the sessions")
    parser.add_argument("--rate", type=float, default=1.0, help="sessions a second")
    options = parser.parse_args()
    if options.minutes < MINUTES_MIN:
        parser.error(f"minutes: at least {MINUTES_MIN:g}, or nothing has a level")
    silence_client_logs()
    folder, machine = Path(tempfile.mkdtemp(prefix="turnstream-soak-")), Machine()
    broker = Broker(folder / "broker", heap_mb=HEAP_MB)
    broker.properties += BROKER
    # All of the heap from the start: when Java takes which part of it is no matter of ours.
    broker.java_options += [f"-Xms{HEAP_MB}m", "-XX:+AlwaysPreTouch"]
    with ended_by_sigterm(), broker:
        plan = Plan(options.minutes, options.seed, options.rate)
        code = asyncio.run(_code(folder, broker, plan))
    say(machine.report())
    if code:
        say(f"exit {code}; broker data and what the processes said: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(code)
