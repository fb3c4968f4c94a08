"""One record of every type with every field set, and one with only what is required.

The full ones are the specification of "every field has two spellings": a field that is added
to the contract must be added here, and `test_codec` says so.

Invariant: in `FULL` no optional field has its default; in `MINIMAL` every one has.
"""

from typing import Any

import msgspec
import numpy as np

from schemas.control import Paused, Resumed
from schemas.dead_letters import DeadLetter
from schemas.events import (
    Channel,
    EndReason,
    Purge,
    Reward,
    Sampling,
    SessionEnded,
    SessionExpired,
    SessionOpened,
    Turn,
    TurnUndelivered,
)
from schemas.packed import Packed, PackedBranch, PackedNode
from schemas.record import Floats, Ids, Octets, Record
from schemas.samples import ChannelBlob, LedgerRow, Sample, SampleRevised, SessionClosed, TurnSpan
from schemas.traces import Trace, TraceTurn
from schemas.trained import Trained


def ids(*values: int) -> Ids:
    return np.array(values, np.int32)


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def text(json: str) -> msgspec.Raw:
    return msgspec.Raw(json.encode())


IDENTITY: dict[str, Any] = {
    "session_id": "run-1:s.1_",
    "run_id": "run-1",
    "run_epoch": 2,
    "task_id": "task",
    "group_id": "group",
    "group_size": 8,
    "rollout_index": 3,
    "attempt": 1,
    "split": "eval",
    "step": 40,
}
SAMPLING = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    frequency_penalty=0.1,
    presence_penalty=0.2,
    repetition_penalty=1.1,
    constraint="json_schema",
    logprobs="processed",
)
# Big integers and escapes: what a decoder to numbers and a second encoder would change.
MESSAGE = text('{"role":"assistant","content":"a\\u0000\\"\\\\\\n","n":123456789012345678901234}')
PAYLOAD: dict[str, Any] = {"score": 0.1, "terms": [1, 2.5], "id": 2**70, "text": 'é"\n\\'}
REASON = EndReason(
    stage="agent", category="tool", type="ValueError", message="no file", retryable=True
)
CHANNEL = Channel(
    dtype="float16",
    shape=[2, 1],
    data=Octets(bytes(4)),
    blob="blobs/1",
    digest=Octets(b"\x00\xff" * 8),
    length=4,
)

FULL: tuple[Record, ...] = (
    SessionOpened(
        **IDENTITY,
        sampling=SAMPLING,
        budgets={"turns": 5},
        policy={"profile": "slime", "train_statuses": ["completed"]},
        fingerprint="qwen3/all",
        metadata=text('{"answer":18446744073709551617,"b":[1.0,true]}'),
    ),
    Turn(
        **IDENTITY,
        turn_id="t1",
        prompt_messages=(text('{"role":"user"}'), MESSAGE),
        prompt_ids=ids(1, 2**31 - 1),
        output_ids=ids(0, 7),
        logprobs=floats(-0.1, -1e-8),
        response_message=MESSAGE,
        source="gw-1",
        seq=1,
        prev=0,
        request_class="subagent",
        agent_id="a",
        model="m",
        weight_versions=[(3, 1), (4, 1)],
        weight_label="v4",
        continued_at=[(1, True), (2, None)],
        cache_flushed=True,
        finish_reason="tool_calls",
        sampling=SAMPLING,
        untrained_runs=[(0, 1, "forced tool")],
        ill_formed=True,
        trainable=False,
        delivered=False,
        part_of="t0",
        class_by_shape=True,
        tools=text('[{"name":"f"}]'),
        tools_digest="ab",
        fingerprint="qwen3/all",
        prompt_built="bridge",
        channels={"entropy": CHANNEL},
        reward=PAYLOAD,
        reward_invalid=True,
        raw_prompt="<u>",
        started_ms=-5,
        finished_ms=2**40,
        base_turn_id="t0",
        kept_messages=3,
        kept_ids=9,
        prompt_digest=Octets(range(16)),
    ),
    TurnUndelivered(session_id="s", turn_id="t1", source="gw-1", seq=4),
    Reward(
        session_id="s", reward_id="r", turn_id="t1", reward=0.1, reward_invalid=True, final=False
    ),
    SessionEnded(
        **IDENTITY,
        end_status="parse_error",
        reason=REASON,
        finish_reason="weird",
        reward=PAYLOAD,
        reward_invalid=True,
        reward_pending=False,
        accepted=False,
        will_retry=True,
        turns={"gw-1": 4},
        final_message=MESSAGE,
    ),
    SessionExpired(session_id="s", cause="reward_grace", last_offset=2**60),
    Purge(floor=17),
    Sample(
        **IDENTITY,
        sample_id="ab" * 16,
        index=1,
        count=2,
        tokens=ids(1, 2, 3),
        prompt_len=1,
        loss_mask=[(1, 2)],
        logprobs=floats(0.0, -0.3, 0.0),
        reward=0.1,
        session_reward=0.2,
        policy="seed+01234567",
        revision=0,
        rollout_id="run-1:s.1_",
        logprobs_missing=[(1, 2)],
        reward_payload=text('{"score":0.2}'),
        turn_rewards={"t1": 0.3},
        weight_versions=[(4, 1, 2)],
        turns=[
            TurnSpan(
                turn_id="t1",
                start=1,
                end=2,
                attach="realign",
                sampling=SAMPLING,
                continued_at=[(1, False)],
                cache_flushed=False,
            )
        ],
        channels={"entropy": CHANNEL},
        channel_blobs=[ChannelBlob(name="entropy", start=1, end=2, channel=CHANNEL)],
        channels_missing=1,
        end_status="truncated",
        truncated=True,
        use_tool=True,
        ill_formed=True,
        tool_turns=1,
        generated=2,
        trained=1,
    ),
    SampleRevised(
        session_id="s",
        sample_id="ab" * 16,
        revision=9,
        reward=0.1,
        session_reward=0.2,
        reward_payload=text('{"score":0.2}'),
        turn_rewards={"t1": 0.3},
    ),
    SessionClosed(
        **IDENTITY,
        sample_ids=["ab" * 16],
        end_status="timeout",
        policy="lossless",
        turns=1,
        generated=3,
        trained=1,
        ledger=[
            LedgerRow(turn_id="t1", attach="root", generated=3, trained=1, untrained={"forced": 2})
        ],
        withheld="gap",
        reason=REASON,
        finish_reason="weird",
        accepted=False,
        will_retry=True,
        reward=0.1,
        reward_payload=text('{"score":0.1}'),
        reward_invalid=True,
        metadata=text('{"answer":42}'),
        final_message=MESSAGE,
        duplicates=1,
        ignored=2,
        refused=3,
        gaps=4,
        lost=5,
        implied_end=True,
    ),
    Packed(
        **IDENTITY,
        nodes=[PackedNode(parent=-1, tokens=ids(1, 2)), PackedNode(parent=0, tokens=ids(3))],
        branches=[
            PackedBranch(
                node=1,
                sample_id="ab" * 16,
                index=1,
                prompt_len=1,
                loss_mask=[(1, 2)],
                logprobs=floats(-0.3),
                reward=0.1,
                revision=0,
                logprobs_missing=[(1, 2)],
                turn_rewards={"t1": 0.3},
                weight_versions=[(4, 1, 2)],
                turns=[TurnSpan(turn_id="t1", start=1, end=2, attach="fork", sampling=SAMPLING)],
                channels={"entropy": CHANNEL},
                channel_blobs=[ChannelBlob(name="entropy", start=1, end=2, channel=CHANNEL)],
                channels_missing=1,
                truncated=True,
                use_tool=True,
                ill_formed=True,
                tool_turns=1,
                generated=2,
                trained=1,
            )
        ],
        count=2,
        session_reward=0.2,
        policy="seed",
        rollout_id="run-1:s.1_",
        reward_payload=text('{"score":0.2}'),
        end_status="truncated",
    ),
    Trace(
        **IDENTITY,
        end_status="completed",
        messages=text('[{"role":"user"}]'),
        parents=[-1],
        turns=[
            TraceTurn(
                turn_id="t1",
                message=0,
                finish_reason="stop",
                reward=0.1,
                prompt_len=2,
                response_len=1,
                weight_versions=[(3, 1)],
                started_ms=1,
                finished_ms=2,
                raw_prompt="<u>",
            )
        ],
        metadata=text('{"answer":42}'),
        tools=text("[]"),
        reward=0.1,
        reward_payload=text('{"score":0.1}'),
        reason=REASON,
        tool_turns=1,
        generated=3,
        trained=1,
        messages_left_out=3,
        untrained={"forced": 2},
    ),
    DeadLetter(
        code="late_turn",
        detail="the session is closed",
        session_id="s",
        turn_id="t1",
        topic="turnstream.turns",
        partition=3,
        offset=2**40,
        line=7,
        payload=Octets(b"\x00\xffraw"),
    ),
    Trained(
        run_id="run-1",
        step=4,
        weight_version=5,
        sample_ids=["ab" * 16],
        run_epoch=1,
        statistics=text('{"ab":{"kl":0.1}}'),
        places=[(3, 1024)],
    ),
    Paused(run_id="run-1"),
    Resumed(run_id="run-1", version=5, run_epoch=1, cache_flushed=True),
)

MINIMAL: tuple[Record, ...] = (
    SessionOpened(session_id="s"),
    Turn(
        session_id="s",
        turn_id="t1",
        prompt_messages=(text('{"role":"user"}'),),
        prompt_ids=ids(),
        output_ids=ids(),
    ),
    TurnUndelivered(session_id="s"),
    Reward(session_id="s", reward=0.0),
    SessionEnded(session_id="s", end_status="completed"),
    SessionExpired(session_id="s"),
    Purge(floor=0),
    Sample(
        session_id="s",
        sample_id="",
        index=0,
        count=0,
        tokens=ids(),
        prompt_len=0,
        loss_mask=[],
        logprobs=floats(),
        reward=None,
        session_reward=None,
        policy="seed",
        revision=0,
    ),
    SampleRevised(session_id="s", sample_id="", revision=0, reward=None, session_reward=None),
    SessionClosed(
        session_id="s",
        sample_ids=[],
        end_status="completed",
        policy="seed",
        turns=0,
        generated=0,
        trained=0,
        ledger=[],
    ),
    Packed(session_id="s", nodes=[], branches=[], count=0, session_reward=None, policy="seed"),
    Trace(session_id="s", end_status="completed", messages=text("[]"), parents=[], turns=[]),
    DeadLetter(code="undecodable", detail=""),
    Trained(run_id="run-1", step=0, weight_version=0, sample_ids=[]),
    Paused(run_id="run-1"),
    Resumed(run_id="run-1", version=0),
)


def name(record: Record) -> str:
    return str(record.__struct_config__.tag)
