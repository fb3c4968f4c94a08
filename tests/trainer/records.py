"""Samples and outcomes as a processor sends them, short to write."""

from typing import Any

import numpy as np

from schemas.samples import Sample, SampleRevised, SessionClosed


def sample(session_id: str, index: int = 0, count: int = 1, **fields: Any) -> Sample:
    """Five tokens, the last two of them trained, unless told otherwise."""
    tokens = np.arange(fields.pop("length", 5), dtype=np.int32) + 100 * (index + 1)
    trained = fields.pop("trained", 2)
    start = tokens.size - trained
    version = fields.pop("version", None)
    versions = None if version is None else [(version, start, tokens.size)]
    values: dict[str, Any] = {
        "sample_id": f"{session_id}/{index}",
        "tokens": tokens,
        "prompt_len": start,
        "loss_mask": [(start, tokens.size)],
        "logprobs": np.where(np.arange(tokens.size) < start, 0.0, -0.5).astype(np.float32),
        "reward": 1.0,
        "session_reward": 1.0,
        "policy": "seed",
        "revision": 0,
        "weight_versions": versions,
        "trained": trained,
    }
    return Sample(session_id=session_id, index=index, count=count, **(values | fields))


def outcome(session_id: str, samples: int = 1, **fields: Any) -> SessionClosed:
    """A session that completed with a reward of 1, unless told otherwise."""
    values: dict[str, Any] = {
        "sample_ids": [f"{session_id}/{index}" for index in range(samples)],
        "end_status": "completed",
        "policy": "seed",
        "turns": samples,
        "generated": 2 * samples,
        "trained": 2 * samples,
        "ledger": [],
        "reward": 1.0,
    }
    return SessionClosed(session_id=session_id, **(values | fields))


def session(
    session_id: str, samples: int = 1, *, version: int | None = None, **identity: Any
) -> list[Sample | SessionClosed]:
    """All records of a session, in order; the reward is split evenly, as `seed` does."""
    reward = identity.pop("reward", 1.0)
    end = {
        name: identity.pop(name)
        for name in ("end_status", "will_retry", "withheld", "accepted")
        if name in identity
    }
    sizes = {name: identity.pop(name) for name in ("length", "trained") if name in identity}
    share = None if reward is None else reward / max(1, samples)
    made = [
        sample(
            session_id,
            index,
            samples,
            version=version,
            reward=share,
            session_reward=reward,
            **sizes,
            **identity,
        )
        for index in range(samples)
    ]
    return [*made, outcome(session_id, samples, reward=reward, **end, **identity)]


def revised(session_id: str, index: int, revision: int, reward: float) -> SampleRevised:
    """A later reward."""
    return SampleRevised(
        session_id=session_id,
        sample_id=f"{session_id}/{index}",
        revision=revision,
        reward=reward,
        session_reward=reward,
    )
