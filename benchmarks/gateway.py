"""`make bench-gateway`: the gateway beside a peer, a bare proxy and no gateway, in one run.

    straight   load ──────────────► mock
    proxy      load ──► aiohttp ──► mock      hands body and answer on
    gateway    load ──► gateway ──► mock      embedded log, every turn durable before its answer
    chat       load ──────────────► mock      the same engine by its chat API, as the peer asks it
    rllm       load ──► rllm    ───► mock     rllm-model-gateway 0.1.0, stored after its answer

The gateway makes the prompt of recorded ids, reads the sampled ids as a message, and gives its
clients the ids they need; the peer leaves both to the engine, whose chat API it asks for ids. So
each has its own engine's answer to carry, and its own p50 without a gateway to be compared with.

All of them are processes on the same cores. Sessions of ten turns, each request
with all of the history: 4,200 tokens and 55 KB in the mean, 75 KB at the end; answers of 200 ids.
Rounds go through all sides in turn and the best round of each counts: neighbours only slow.
Then what building a prompt costs as the history grows.

Invariant: a figure counts only if every process that belongs to it lives, has worked, and the log
holds every turn with the engine's ids.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import gateway_rllm
from benchmarks.gateway_checks import Recorded, check, turns_in
from benchmarks.gateway_child import Server
from benchmarks.gateway_load import Job, Measured
from benchmarks.gateway_mock import CHAT, Said
from benchmarks.gateway_prompts import SIZES, costs_by_size
from benchmarks.gateway_script import Script, Shape, write
from benchmarks.peers import environment
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.settings import Settings
from tests.drift import qwen3

AGENTS = {1: 12, 16: 64}
"""At a time, and sessions of a round."""
WARM_SESSIONS = 16
SIDES = {"straight": 16, "proxy": 6, "gateway": 1, "chat": 8, "rllm": 1}
"""How many times the sessions each side gets: rounds of like length meet like neighbours."""
BARE = {"straight": "/v1/chat/completions", "chat": f"{CHAT}/chat/completions"}
"""Paths of the mock, for sides without a process of their own."""
AIM_PEER_RATE = 5.0
AIM_PEER_ADDED = 1 / 3
AIM_ADDED_MS = 3.0
AIM_RATE = 0.25
AIM_BUILD_MS = 1.0
LOAD_S_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One side under one load."""

    p50_ms: float
    first_p50_ms: float
    """Of the requests that begin a session, whose prompt is rendered whole."""
    per_s: float
    body_bytes: float
    busy: dict[str, float]
    """CPU time of each process as a share of the time that passed."""
    cpu_us: dict[str, float]
    """CPU time of each process by request."""


class Bench:
    """The processes, and what they have done."""

    def __init__(self, folder: Path, script: Script, children: dict[str, Server]):
        """All of them serve."""
        self._script_path = folder / "script"
        script.save(self._script_path)
        self._turns = len(script.bodies)
        self._ids = [answer.ids for answer in script.answers]
        self._children = children
        assert len({child.port for child in self._children.values()}) == len(self._children)
        self.prompts: dict[str, list[str]] = {}
        """What the engine was asked through the gateway, by session."""

    def round(self, side: str, agents: int, sessions: int) -> Round:
        """Some sessions to one side, with so many at a time."""
        ids = [f"{side}-{uuid.uuid4().hex}" for _ in range(sessions)]
        job = Job(
            script=str(self._script_path),
            port=self._children["mock" if side in BARE else side].port,
            agents=agents,
            sessions={name: self._open(name) if side == "gateway" else "none" for name in ids},
            minted=side == "gateway",
            path=gateway_rllm.PATH if side == "rllm" else BARE.get(side, BARE["straight"]),
        )
        before = {name: child.cpu_s() for name, child in self._children.items()}
        measured = _load(job)
        if side == "rllm":
            # It writes on after the last answer; that is its work, and must not slow the next.
            gateway_rllm.wait_until_stored(job.port, ids, self._turns)
        spent = {name: child.cpu_s() - before[name] for name, child in self._children.items()}
        spent["load"] = measured.cpu_s
        self._check(side, ids, spent)
        if side == "rllm" and gateway_rllm.stored_ids(job.port, ids[-1]) != self._ids:
            raise RuntimeError("rllm: its store has other ids than the engine gave")
        return self._told(side, measured, spent)

    def _told(self, side: str, measured: Measured, spent: dict[str, float]) -> Round:
        taking_part = {name: spent[name] for name in ("load", "mock", side) if name in spent}
        latencies_s = list(chain.from_iterable(measured.latencies_s))
        requests = len(latencies_s)
        return Round(
            p50_ms=statistics.median(latencies_s) * 1000,
            first_p50_ms=statistics.median(measured.latencies_s[0]) * 1000,
            per_s=requests / measured.wall_s,
            body_bytes=measured.sent_bytes / requests,
            busy={name: cpu_s / measured.wall_s for name, cpu_s in taking_part.items()},
            cpu_us={name: cpu_s / requests * 1e6 for name, cpu_s in taking_part.items()},
        )

    def _check(self, side: str, sessions: list[str], spent: dict[str, float]) -> None:
        said = self._said()
        expected = dict.fromkeys(sessions, self._turns)
        assert said.answered == expected, f"{side}: the engine was asked something else"
        self.prompts.update(said.prompts)
        idle = [name for name in ("load", "mock", side) if spent.get(name, 1.0) <= 0]
        assert not idle, f"{side}: {idle} did nothing"

    def _said(self) -> Said:
        address = f"http://127.0.0.1:{self._children['mock'].port}/journal"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return msgspec.json.decode(answer.read(), type=Said)

    def _open(self, session_id: str) -> str:
        gateway = self._children["gateway"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{gateway.port}/control/sessions",
            data=json.dumps({"session_id": session_id}).encode(),
            headers={"authorization": f"Bearer {gateway.ready['control_key']}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["key"])


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


Rounds = dict[int, dict[str, list[Round]]]


def measure(
    script: Script, folder: Path, *, agents: dict[int, int], rounds: int, warm: int
) -> tuple[Rounds, Recorded]:
    """Rounds by agents and side, and what the log holds of them."""
    script_path, log_path = folder / "script", folder / "log.db"
    script.save(script_path)
    found: Rounds = {number: {side: [] for side in SIDES} for number in agents}
    with (
        Server("benchmarks.gateway_mock", str(script_path)) as mock,
        Server("benchmarks.gateway_proxy", str(mock.port)) as proxy,
        Server(
            "benchmarks.gateway_served", f"http://127.0.0.1:{mock.port}", str(log_path)
        ) as gateway,
        Server(
            "benchmarks.gateway_rllm",
            f"http://127.0.0.1:{mock.port}{CHAT}",
            str(folder / "rllm.db"),
            python=environment("rllm"),
        ) as rllm,
    ):
        children = {"mock": mock, "proxy": proxy, "gateway": gateway, "rllm": rllm}
        bench = Bench(folder, script, children)
        for side in SIDES:
            bench.round(side, min(warm, max(agents)), warm)
        for _ in range(rounds):
            for number, sessions in agents.items():
                for side, times in SIDES.items():
                    found[number][side].append(bench.round(side, number, sessions * times))
        turns = asyncio.run(turns_in(log_path, Settings()))
        recorded = check(turns, bench.prompts, script)
    return found, recorded


def best(rounds: Sequence[Round]) -> Round:
    """The best of each figure; shares of the round with the most requests."""
    fastest = max(rounds, key=lambda one: one.per_s)
    return Round(
        p50_ms=min(one.p50_ms for one in rounds),
        first_p50_ms=min(one.first_p50_ms for one in rounds),
        per_s=fastest.per_s,
        body_bytes=fastest.body_bytes,
        busy=fastest.busy,
        cpu_us={name: min(one.cpu_us[name] for one in rounds) for name in fastest.cpu_us},
    )


def show_load(found: Rounds) -> dict[str, Any]:
    """Print the table; the same as data."""
    report: dict[str, Any] = {}
    for agents, sides in found.items():
        rows = {side: best(rounds) for side, rounds in sides.items()}
        straight, proxy = rows["straight"], rows["proxy"]
        print(f"\n{agents} at a time      p50 ms   added ms      req/s   of proxy   of straight")
        bare = {side: rows["chat" if side in ("chat", "rllm") else "straight"] for side in rows}
        for side, row in rows.items():
            print(
                f"  {side:<12} {row.p50_ms:>11.2f} {row.p50_ms - bare[side].p50_ms:>10.2f}"
                f" {row.per_s:>10,.0f} {row.per_s / proxy.per_s:>10.2f}"
                f" {row.per_s / straight.per_s:>13.2f}"
            )
            spent = [f"{name} {row.cpu_us[name]:,.0f} us" for name in row.cpu_us]
            busy = [f"{name} {share:.0%}" for name, share in row.busy.items()]
            print(f"    CPU a request: {', '.join(spent)}; busy: {', '.join(busy)}")
        gateway, peer = rows["gateway"], rows["rllm"]
        added = peer.p50_ms - bare["rllm"].p50_ms
        report[str(agents)] = {
            "added_p50_ms": gateway.p50_ms - straight.p50_ms,
            "added_p50_ms_to_proxy": gateway.p50_ms - proxy.p50_ms,
            "first_turn_p50_ms": gateway.first_p50_ms,
            "per_s_of_proxy": gateway.per_s / proxy.per_s,
            "per_s_of_straight": gateway.per_s / straight.per_s,
            "per_s_of_rllm": gateway.per_s / peer.per_s,
            "added_p50_of_rllm": (gateway.p50_ms - straight.p50_ms) / added,
            "cpu_of_rllm": gateway.cpu_us["gateway"] / peer.cpu_us["rllm"],
            "cpu_of_proxy": gateway.cpu_us["gateway"] / proxy.cpu_us["proxy"],
            "sides": {side: msgspec.to_builtins(row) for side, row in rows.items()},
        }
    return report


def show_peer(report: dict[str, Any]) -> None:
    """Print how the gateway stands to its peer."""
    for agents, row in report.items():
        print(
            f"of rllm at {agents:>2}: {row['per_s_of_rllm']:.1f} times the req/s"
            f" (aim {AIM_PEER_RATE:g}), {row['added_p50_of_rllm']:.2f} of the added p50"
            f" (aim {AIM_PEER_ADDED:.2f}), {row['cpu_of_rllm']:.2f} of the CPU a request"
        )


def main() -> None:
    """Print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="through all sides")
    parser.add_argument("--sessions", type=int, default=3, help="of the prompt-building table")
    arguments = parser.parse_args()
    qwen = qwen3.load()
    script = write(qwen, Shape())
    with tempfile.TemporaryDirectory() as name:
        found, recorded = measure(
            script, Path(name), agents=AGENTS, rounds=arguments.rounds, warm=WARM_SESSIONS
        )
    body_kb = best(found[max(AGENTS)]["gateway"]).body_bytes / 1000
    built = ", ".join(f"{count:,} {how}" for how, count in sorted(recorded.built.items()))
    print(
        f"{recorded.turns:,} turns in the log with the engine's ids ({built});"
        f" in the mean {recorded.prompt_tokens:,.0f} prompt tokens, {body_kb:.0f} KB a body"
    )
    report = show_load(found)
    print(f"\naims: added p50 at 1: {AIM_ADDED_MS:g} ms; req/s of the proxy at 16: {AIM_RATE:g}")
    show_peer(report)
    costs = costs_by_size(
        qwen,
        Renderer(qwen3.tokenizer_folder()),
        SIZES,
        sessions=arguments.sessions,
        shape=Shape(question=400),
    )
    print(f"\nhistory, tokens    build ms    read the body ms     aim: {AIM_BUILD_MS:g} ms, flat")
    for size, row in costs.items():
        print(f"{size:>15,} {row['build_ms']:>11.2f} {row['read_ms']:>19.2f}")
    facts = {"turns": recorded.turns, "prompt_tokens": recorded.prompt_tokens, "body_kb": body_kb}
    print(json.dumps({"load": report, "prompts": costs, **facts}))


if __name__ == "__main__":
    main()
