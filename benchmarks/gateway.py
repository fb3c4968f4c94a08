"""`make bench-gateway`: the gateway beside a peer, a bare proxy and no gateway, all streamed.

    gateway    load ──► gateway ──► mock      chat API and Messages API over SGLang's and vLLM's
                                              wire, embedded log, every turn durable before its end
    peer       load ──► rllm    ──► mock      rllm-model-gateway 0.1.0 over vLLM's chat API,
                                              stored after its end
    proxy      load ──► aiohttp ──► mock      passes vLLM's wire on
    bare       load ──────────────► mock      either of vLLM's wires, to subtract

The gateway builds each prompt of recorded ids, sends ids, and parses the sampled ids into a
message; the peer leaves both to the engine, a work that a mock does not do, and asks for the ids.

All of them are processes on the same cores. Histories of three lengths, one token an event or
sixteen (`--per-event 200`: an answer in one piece), one agent or sixteen, whose streams go in
step, as those of one engine do. A session is opened before anything is measured, so that every
measured turn extends recorded ones; answers have 200 ids, results 100 tokens. Rounds go through
all sides in turn and the best of each figure counts: other work on the machine only slows.

At 1,000 tokens a second a stream sixteen streams are more events than a core takes: that shows
the most there can be a second, and since events then come several at a time, too little of what
one costs. So the shortest history is measured again at the pace of an engine, 60 a second.
Then what building a prompt costs as the history grows.

Invariant: a figure counts only if every process that belongs to it lives, has worked, and the log
holds every turn with the engine's ids.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import gateway_rllm
from benchmarks.gateway_checks import Recorded, check, turns_in
from benchmarks.gateway_child import Server
from benchmarks.gateway_load import Agent, Job, Measured
from benchmarks.gateway_mock import Journal, Prepare
from benchmarks.gateway_prompts import SIZES, costs_by_size
from benchmarks.gateway_script import CHAT, MESSAGES, Script, Shape, write
from benchmarks.peers import environment
from schemas.events import Turn
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.settings import Settings
from tests.drift import qwen3

LOAD_S_MAX = 300.0
GENERATE = "/inference/v1/generate"
AIM_BUILD_MS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Who is asked, and over which wire the engine answers."""

    wire: str
    child: str | None
    """The process between load and engine; None: there is none."""
    api: str = CHAT
    """What the client speaks."""
    path: str | None = None
    """Where, if it is not the path of that API."""
    minted: bool = False
    """Whether it is our gateway, with keys for sessions and ids for calls."""
    bare: str | None = None
    """The side without a process between, whose p50 is subtracted."""


GENERATED, CHATTED = "no gateway, generate", "no gateway, chat"
PEER, PROXY = "rllm-model-gateway", "bare proxy"
SIDES = {
    GENERATED: Side(wire="vllm", child=None, path=GENERATE),
    CHATTED: Side(wire="vllm chat", child=None),
    PROXY: Side(wire="vllm", child="proxy", path=GENERATE, bare=GENERATED),
    PEER: Side(wire="vllm chat", child="rllm", path=gateway_rllm.PATH, bare=CHATTED),
    "gateway, vLLM": Side(wire="vllm", child="vllm", minted=True, bare=GENERATED),
    "gateway, vLLM, Messages API": Side(
        wire="vllm", child="vllm", api=MESSAGES, minted=True, bare=GENERATED
    ),
    "gateway, SGLang": Side(wire="sglang", child="sglang", minted=True, bare=GENERATED),
    "gateway, SGLang cumulative": Side(
        wire="sglang cumulative", child="sglang", minted=True, bare=GENERATED
    ),
}


SHAPE = Shape(result=100)
FAST, AS_AN_ENGINE = 1_000, 60
"""Tokens a second of one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    histories: tuple[int, ...] = (4_800, 36_000, 133_000)
    """Tokens of a session's first prompt; the measured ones are some turns longer."""
    per_event: tuple[int, ...] = (1, 16)
    """Tokens that the engine puts into one event."""
    agents: dict[int, int] = field(default_factory=lambda: {1: 3, 16: 2})
    """Agents at a time, and turns of each in a round."""
    rounds: int = 2
    tokens_per_s: int = FAST
    """Of each stream."""
    shape: Shape = SHAPE

    def at_the_pace_of_an_engine(self) -> "Plan":
        """The shortest history, with as many agents as there are at most."""
        most = max(self.agents)
        return replace(
            self,
            histories=(min(self.histories),),
            agents={most: self.agents[most]},
            tokens_per_s=AS_AN_ENGINE,
        )

    def script_shape(self, history: int) -> Shape:
        """Sessions long enough for all rounds."""
        turns = 1 + max(self.agents.values()) * len(self.per_event) * self.rounds
        return msgspec.structs.replace(self.shape, history=history, turns=turns)


SMOKE = Plan(histories=(3_000,), agents={1: 1, 2: 1}, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One side under one load."""

    p50_ms: float
    first_token_p50_ms: float
    per_s: float
    body_bytes: float
    cpu_us: dict[str, float]
    """CPU time of each process by request."""


@dataclass(slots=True)
class Group:
    """Sessions of one side that take their turns together."""

    sessions: dict[str, Agent]
    turn: int = 0


Load = tuple[int, int, str]
"""Tokens an event, agents, side."""
Rounds = dict[Load, list[Round]]


class Bench:
    """The processes, and what they have done."""

    def __init__(self, script_path: Path, children: dict[str, Server], tokens_per_s: int) -> None:
        """All of them serve."""
        self._script_path, self._tokens_per_s = script_path, tokens_per_s
        self._children = children
        assert len({child.port for child in children.values()}) == len(children)
        self._groups: dict[tuple[int, str], Group] = {}
        self.prompts: dict[str, dict[str, list[str]]] = {}
        """What the engine was asked through our gateways: by process and session."""

    def open(self, side: str, agents: int) -> None:
        """Take the first turn of some sessions, whose prompt is rendered whole."""
        names = [f"{SIDES[side].child}-{uuid.uuid4().hex}" for _ in range(agents)]
        sessions = {name: Agent(self._key(name, side), []) for name in names}
        self._groups[agents, side] = Group(sessions)
        self.round(side, agents, turns=1, per_event=16)

    def round(self, side: str, agents: int, turns: int, per_event: int) -> Round:
        """Some turns of one side's sessions, all at a time."""
        shape, group = SIDES[side], self._groups[agents, side]
        between = group.turn, group.turn + turns
        prepare = Prepare(
            wire=shape.wire, per_event=per_event, tokens_per_s=self._tokens_per_s, turns=between
        )
        _asked(self._children["mock"].port, "/prepare", msgspec.json.encode(prepare))
        job = Job(
            script=str(self._script_path),
            port=self._children[shape.child or "mock"].port,
            api=shape.api,
            path=shape.path or shape.api,
            agents=agents,
            turns=between,
            sessions=group.sessions,
            minted=shape.minted,
        )
        before = {name: child.cpu_s() for name, child in self._children.items()}
        measured = _load(job)
        group.sessions, group.turn = measured.sessions, between[1]
        if shape.child == "rllm":
            # It writes on after the last answer; that is its work, and must not slow the next.
            gateway_rllm.wait_until_stored(job.port, list(group.sessions), group.turn)
        taking_part = [name for name in ("mock", shape.child) if name is not None]
        spent = {name: self._children[name].cpu_s() - before[name] for name in taking_part}
        spent["load"] = measured.cpu_s
        self._check(side, group, spent)
        requests = len(measured.latencies_s)
        return Round(
            p50_ms=statistics.median(measured.latencies_s) * 1000,
            first_token_p50_ms=statistics.median(measured.first_tokens_s) * 1000,
            per_s=requests / measured.wall_s,
            body_bytes=measured.sent_bytes / requests,
            cpu_us={name: cpu_s / requests * 1e6 for name, cpu_s in spent.items()},
        )

    def check_store_of_peer(self, script: Script) -> None:
        """The peer has the engine's ids too."""
        for (_, side), group in self._groups.items():
            if SIDES[side].child == "rllm":
                session, port = next(iter(group.sessions)), self._children["rllm"].port
                expected = [answer.ids for answer in script.answers[: group.turn]]
                if gateway_rllm.stored_ids(port, session) != expected:
                    raise RuntimeError("rllm: its store has other ids than the engine gave")

    def _check(self, side: str, group: Group, spent: dict[str, float]) -> None:
        answer = _asked(self._children["mock"].port, "/journal")
        journal = msgspec.json.decode(answer, type=Journal)
        wrong = {name for name in group.sessions if journal.answered.get(name) != group.turn}
        assert not wrong, f"{side}: the engine was asked something else by {wrong}"
        kept = self.prompts.setdefault(SIDES[side].child or "mock", {})
        for name, digests in journal.prompts.items():
            kept.setdefault(name, []).extend(digests)
        idle = [name for name, cpu_s in spent.items() if cpu_s <= 0]
        assert not idle, f"{side}: {idle} did nothing"

    def _key(self, session_id: str, side: str) -> str:
        if not SIDES[side].minted:
            return "none"
        gateway = self._children[SIDES[side].child or ""]
        control = {"authorization": f"Bearer {gateway.ready['control_key']}"}
        asked = json.dumps({"session_id": session_id}).encode()
        return str(json.loads(_asked(gateway.port, "/control/sessions", asked, control))["key"])


def _asked(
    port: int, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers or {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def _load(job: Job) -> Measured:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway_load"],
        input=msgspec.json.encode(job),
        capture_output=True,
        timeout=LOAD_S_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the load failed: {done.stderr[-2000:].decode(errors='replace')}")
    return msgspec.json.decode(done.stdout, type=Measured)


@contextlib.contextmanager
def serving(script_path: Path, folder: Path) -> Iterator[dict[str, Server]]:
    """Every process but the load."""
    with contextlib.ExitStack() as stack:
        mock = stack.enter_context(Server("benchmarks.gateway_mock", str(script_path)))
        address = f"http://127.0.0.1:{mock.port}"
        others = {
            "proxy": Server("benchmarks.gateway_proxy", str(mock.port)),
            "rllm": Server(
                "benchmarks.gateway_rllm",
                f"{address}/v1",
                str(folder / "rllm.db"),
                python=environment("rllm"),
            ),
        }
        for kind in ("sglang", "vllm"):
            log = str(folder / f"{kind}.db")
            others[kind] = Server("benchmarks.gateway_served", kind, address, log)
        yield {"mock": mock} | {n: stack.enter_context(child) for n, child in others.items()}


def measure(script: Script, folder: Path, plan: Plan) -> tuple[Rounds, Recorded]:
    """Rounds by load, and what the logs hold of them."""
    script_path = folder / "script"
    script.save(script_path)
    found: Rounds = {}
    with serving(script_path, folder) as children:
        bench = Bench(script_path, children, plan.tokens_per_s)
        for agents, side in product(plan.agents, SIDES):
            bench.open(side, agents)
        for _ in range(plan.rounds):
            for per_event, (agents, turns), side in product(
                plan.per_event, plan.agents.items(), SIDES
            ):
                done = bench.round(side, agents, turns, per_event)
                found.setdefault((per_event, agents, side), []).append(done)
        bench.check_store_of_peer(script)
        recorded: dict[str, list[Turn]] = {}
        prompts: dict[str, list[str]] = {}
        for kind in ("sglang", "vllm"):
            recorded |= asyncio.run(turns_in(folder / f"{kind}.db", Settings()))
            prompts |= bench.prompts[kind]
    return found, check(recorded, prompts, script)


def best(rounds: Sequence[Round]) -> Round:
    """The best of each figure."""
    return Round(
        p50_ms=min(one.p50_ms for one in rounds),
        first_token_p50_ms=min(one.first_token_p50_ms for one in rounds),
        per_s=max(one.per_s for one in rounds),
        body_bytes=rounds[0].body_bytes,
        cpu_us={name: min(one.cpu_us[name] for one in rounds) for name in rounds[0].cpu_us},
    )


def show(found: Rounds, recorded: Recorded, plan: Plan) -> list[dict[str, Any]]:
    """Print a table for each load; the same as data."""
    rows = {load: best(rounds) for load, rounds in found.items()}
    report = []
    for per_event, agents in dict.fromkeys(load[:2] for load in rows):
        here = {side: rows[per_event, agents, side] for side in SIDES}
        cpu_ms = {s: row.cpu_us[SIDES[s].child or "mock"] / 1000 for s, row in here.items()}
        load = (
            f"{recorded.prompt_tokens:,.0f} prompt tokens, {per_event} an event, {agents} at a time"
            f", {plan.tokens_per_s:,} tokens/s a stream"
        )
        columns = "CPU ms a request  of peer  of proxy   first token ms   added p50 ms     req/s"
        print(f"\n{load}\n{'':<28}{columns}")
        for side, row in here.items():
            shape = SIDES[side]
            if shape.bare is None:
                continue
            figures = {
                "cpu_ms": cpu_ms[side],
                "cpu_of_peer": cpu_ms[side] / cpu_ms[PEER],
                "cpu_of_proxy": cpu_ms[side] / cpu_ms[PROXY],
                "first_token_ms": row.first_token_p50_ms,
                "added_ms": row.p50_ms - here[shape.bare].p50_ms,
                "per_s": row.per_s,
            }
            print(
                "{:<28}{cpu_ms:>16.1f} {cpu_of_peer:>8.2f} {cpu_of_proxy:>9.1f}"
                "{first_token_ms:>17.1f} {added_ms:>14.1f} {per_s:>9.1f}".format(side, **figures)
            )
            which = {"side": side, "agents": agents, "per_event": per_event}
            which["tokens_per_s"] = plan.tokens_per_s
            report.append({**which, **figures, "round": msgspec.to_builtins(row)})
    return report


def main() -> None:
    """Print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=Plan().rounds, help="through all sides")
    parser.add_argument("--history", type=int, action="append", help="only this one, in tokens")
    parser.add_argument("--per-event", type=int, action="append", help="only so many tokens")
    parser.add_argument("--smoke", action="store_true", help="a short history, one round")
    arguments = parser.parse_args()
    plan = (
        SMOKE
        if arguments.smoke
        else Plan(
            histories=tuple(arguments.history or Plan().histories),
            per_event=tuple(arguments.per_event or Plan().per_event),
            rounds=arguments.rounds,
        )
    )
    qwen = qwen3.load()
    loads = []
    plans = [plan] if arguments.smoke else [plan, plan.at_the_pace_of_an_engine()]
    for paced, history in ((one, history) for one in plans for history in one.histories):
        with tempfile.TemporaryDirectory() as name:
            script = write(qwen, paced.script_shape(history))
            found, recorded = measure(script, Path(name), paced)
        report = show(found, recorded, paced)
        built = ", ".join(f"{count:,} {how}" for how, count in sorted(recorded.built.items()))
        print(f"{recorded.turns:,} turns in the logs with the engine's ids ({built})", flush=True)
        loads.append({"prompt_tokens": recorded.prompt_tokens, "rows": report})
    sizes = SIZES[:1] if arguments.smoke else SIZES
    renderer, shape = Renderer(qwen3.tokenizer_folder()), Shape(question=400, result=130)
    costs = costs_by_size(qwen, renderer, sizes, sessions=1 if arguments.smoke else 3, shape=shape)
    print(f"\nhistory, tokens    build ms    read the body ms     aim: {AIM_BUILD_MS:g} ms, flat")
    for size, row in costs.items():
        print(f"{size:>15,} {row['build_ms']:>11.2f} {row['read_ms']:>19.2f}")
    print(json.dumps({"loads": loads, "prompts": costs}))


if __name__ == "__main__":
    main()
