"""Sessions with tools and branches, on a log with a real processor; and what sinks left of them."""

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from schemas import codec
from schemas.samples import Sample
from schemas.traces import Trace
from streams.core.partition import Partition
from streams.core.state import Rules
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.opening import open_log
from streams.settings import Settings
from tests.harness import Json

NOW_MS = int(time.time() * 1000)
"""A turn that is days old would be refused."""
SYSTEM = {"role": "system", "content": "You look after a repository."}
QUESTION = "How big is it?\nIn 兆, please.\u2028"
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"du"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "48M\t."}
ANSWER = {"role": "assistant", "content": "48 MB."}
ROLES = ["system", "user", "assistant", "tool", "assistant"]


def tool_session(
    session_id: str, *, reward: float | None = 1.0, question: str = QUESTION, **opened: Any
) -> list[Json]:
    """Two calls, the first with a tool; 5 tokens sampled, the first trained one is the fourth."""
    user = {"role": "user", "content": question}
    first = {
        "type": "turn",
        "session_id": session_id,
        "turn_id": "t1",
        "prompt_messages": [SYSTEM, user],
        "prompt_ids": [1, 2, 3],
        "output_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
        "response_message": CALL,
        "finish_reason": "tool_calls",
        "started_ms": NOW_MS + 1_000,
        "finished_ms": NOW_MS + 1_400,
    }
    second = first | {
        "turn_id": "t2",
        "prompt_messages": [SYSTEM, user, CALL, RESULT],
        "prompt_ids": [1, 2, 3, 4, 5, 6, 7],
        "output_ids": [8, 9, 10],
        "logprobs": [-0.5, -0.25, -1.0],
        "response_message": ANSWER,
        "finish_reason": "stop",
        "started_ms": NOW_MS + 2_000,
        "finished_ms": NOW_MS + 2_500,
    }
    ended: Json = {"type": "session_ended", "session_id": session_id, "end_status": "completed"}
    if reward is not None:
        ended["reward"] = reward
    opening = {"type": "session_opened", "session_id": session_id} | opened
    return [opening, first, second, ended]


def branched_session(session_id: str, branches: int, **opened: Any) -> list[Json]:
    """As many roots, each answered once."""
    turns = [
        {
            "type": "turn",
            "session_id": session_id,
            "turn_id": f"t{number}",
            "prompt_messages": [{"role": "user", "content": f"part {number}"}],
            "prompt_ids": [100 + number, 2],
            "output_ids": [3, 4],
            "logprobs": [-0.5, -0.25],
            "response_message": {"role": "assistant", "content": f"done {number}"},
        }
        for number in range(branches)
    ]
    ended = {"type": "session_ended", "session_id": session_id, "end_status": "completed"}
    opening = {"type": "session_opened", "session_id": session_id} | opened
    return [opening, *turns, ended | {"reward": 1.0}]


def made(*events: Json) -> tuple[list[Trace], list[Sample]]:
    """What the core makes of them."""
    partition = Partition(rules=Rules(trace_share=1.0))
    traces, samples = list[Trace](), list[Sample]()
    for position, event in enumerate(events, 1):
        effects = partition.feed(codec.from_json(json.dumps(event).encode()), position)  # type: ignore[arg-type]
        assert effects.refusals == ()
        traces += [effects.trace] if effects.trace is not None else []
        samples += effects.samples
    return traces, samples


def trace_named(session_id: str, **opened: Any) -> Trace:
    (trace,), _ = made(*tool_session(session_id, **opened))
    return trace


def put(settings: Settings, traces: Iterable[Trace]) -> None:
    """Traces as the processor leaves them."""

    async def work() -> None:
        async with open_log(settings, create=True) as log:
            await log.end_positions(settings.traces_topic)  # makes the file, also without a trace
            sent = [
                await log.send(
                    Outgoing(
                        topic=settings.traces_topic,
                        key=event_key(trace.session_id),
                        value=codec.to_msgpack(trace),
                    )
                )
                for trace in traces
            ]
            for one in sent:
                await one

    asyncio.run(work())


def strictly(text: str | bytes) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("traces-*.jsonl"))


def dumped(folder: Path) -> list[Json]:
    """Every line of every file, each parsed alone and strictly; whole files only."""
    texts = [path.read_text("utf-8") for path in files(folder)]
    assert all(text.endswith("\n") for text in texts)
    return [strictly(line) for text in texts for line in text.splitlines()]


def summary(folder: Path) -> Json:
    """What it says; every position that it has read up to is accounted for."""
    found: Json = strictly((folder / "summary.json").read_bytes())
    ways = ("sessions", "repeated", "unreadable", "taken_by_retention", "unexplained")
    assert sum(found[way] for way in ways) == sum(found["positions"].values())
    return found
