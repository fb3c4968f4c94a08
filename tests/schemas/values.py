"""What the records of `records` are filled with."""

from typing import Any

import msgspec
import numpy as np

from schemas.events import Channel, EndReason, Sampling
from schemas.record import Floats, Ids, Octets
from schemas.samples import ChannelBlob


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
ENDED: dict[str, Any] = {
    "reason": REASON,
    "finish_reason": "weird",
    "accepted": False,
    "will_retry": True,
    "reward_invalid": True,
    "final_message": MESSAGE,
}
"""Of a session's end, and of whatever tells of it."""
TRAINS: dict[str, Any] = {
    "sample_id": "ab" * 16,
    "index": 1,
    "prompt_len": 1,
    "loss_mask": [(1, 2)],
    "reward": 0.1,
    "revision": 0,
    "logprobs_missing": [(1, 2)],
    "turn_rewards": {"t1": 0.3},
    "weight_versions": [(4, 1, 2)],
    "channels": {"entropy": CHANNEL},
    "channel_blobs": [ChannelBlob(name="entropy", start=1, end=2, channel=CHANNEL)],
    "channels_missing": 1,
    "truncated": True,
    "use_tool": True,
    "ill_formed": True,
    "tool_turns": 1,
    "generated": 2,
    "trained": 1,
}
"""Of a sample, and of a packed one."""
