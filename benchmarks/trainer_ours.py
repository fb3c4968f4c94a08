"""Turnstream's side: samples to the log, each acknowledged when it is durable, and `subscribe`.

    write    Sample + session_closed ──► log       as a processor sends them
    read     subscribe ──► padded tensors ──► commit, for every batch

Invariant: what is read was written by another process; nothing passes but the log.
"""

import argparse
import asyncio
import importlib
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.trainer_child import serve
from benchmarks.trainer_load import BATCH, GROUP, Content, Seen, content
from schemas import codec
from schemas.samples import LedgerRow, Sample, SessionClosed, TurnSpan
from streams.log.interface import Log, Outgoing, Sending
from streams.log.keys import sample_key
from streams.log.opening import open_log
from streams.settings import KAFKA, Settings
from streams.trainer import subscribe
from streams.trainer.converters import padded
from streams.trainer.converters.tensors import tensor

IN_FLIGHT = 256
"""Samples that were sent and not acknowledged."""
BUFFER_BYTES = 64 << 20
RUN = "bench"


def sample(number: int, one: Content) -> Sample:
    """As a processor makes it of a session with a turn for each run."""
    return Sample(
        **_identity(number),
        sample_id=f"s{number}/0",
        index=0,
        count=1,
        tokens=one.ids_T,
        prompt_len=one.runs[0][0],
        loss_mask=one.runs,
        logprobs=one.logprobs_T,
        reward=float(number % 2),
        session_reward=float(number % 2),
        policy="seed",
        revision=0,
        weight_versions=[(1, start, end) for start, end in one.runs],
        turns=[
            TurnSpan(turn_id=f"t{turn}", start=start, end=end, attach="extend" if turn else "root")
            for turn, (start, end) in enumerate(one.runs)
        ],
    )


def outcome(number: int, one: Content) -> SessionClosed:
    """The end of that session."""
    rows = [
        LedgerRow(turn_id=f"t{turn}", attach="extend", generated=end - start, trained=end - start)
        for turn, (start, end) in enumerate(one.runs)
    ]
    trained = sum(row.trained for row in rows)
    return SessionClosed(
        **_identity(number),
        sample_ids=[f"s{number}/0"],
        end_status="completed",
        policy="seed",
        turns=len(rows),
        generated=trained,
        trained=trained,
        ledger=rows,
        reward=float(number % 2),
    )


def _identity(number: int) -> dict[str, Any]:
    return {
        "session_id": f"s{number}",
        "group_id": f"g{number // GROUP}",
        "group_size": GROUP,
        "rollout_index": number % GROUP,
        "run_id": RUN,
    }


async def write(settings: Settings, count: int, tokens: int) -> None:
    """All of them, durable when this returns."""
    async with open_log(settings, create=True) as log:
        on_their_way: deque[Sending] = deque()
        for number in range(count):
            one = content(number, tokens)
            for record in (sample(number, one), outcome(number, one)):
                on_their_way.append(await _sent(log, settings, record))
            while len(on_their_way) > 2 * IN_FLIGHT:
                await on_their_way.popleft()
        for sending in on_their_way:
            await sending


async def _sent(log: Log, settings: Settings, record: Sample | SessionClosed) -> Sending:
    key = sample_key(record.session_id, record.group_id)
    value = codec.to_msgpack(record)
    return await log.send(Outgoing(topic=settings.samples_topic, key=key, value=value))


def read(settings: Settings, count: int, *, torch: bool) -> dict[str, Any]:
    """Batches as tensors until there were so many samples; without torch, as arrays."""
    seen = Seen()
    make = padded.padded if torch else padded.padded_arrays
    with subscribe(
        settings,
        batch_rollouts=BATCH,
        run_id=RUN,
        advantages="grpo",
        buffer_bytes=BUFFER_BYTES,
        progress=False,
    ) as batches:
        for step, batch in enumerate(batches):
            columns = make(batch.rows)
            seen.add(columns["input_ids"], columns["loss_mask"], columns["logprobs"])
            batches.commit(step, step)
            if len(seen.numbers) >= count:
                break
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]


def main() -> None:
    """The child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("write", "read"))
    parser.add_argument("settings", type=Path, help="as JSON")
    parser.add_argument("count", type=int)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--arrays", action="store_true", help="without torch")
    given = parser.parse_args()
    settings = msgspec.json.decode(given.settings.read_bytes(), type=Settings)
    content(0, given.tokens)
    if given.role == "read" and not given.arrays:
        tensor(content(0, given.tokens).ids_T)  # imports torch
    if settings.log == KAFKA:
        importlib.import_module("streams.log.kafka_member")

    def work() -> dict[str, Any]:
        if given.role == "read":
            return read(settings, given.count, torch=not given.arrays)
        asyncio.run(write(settings, given.count, given.tokens))
        return {}

    serve(work)


if __name__ == "__main__":
    main()
