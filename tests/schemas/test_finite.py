"""The terms beside a score: what is no finite number is none, and a flag says which it was."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas import codec
from schemas.events import Reward
from schemas.finite import finite_terms
from streams.adapters.client_steps import checked_reward
from streams.adapters.environments import recorded
from tests.adapters.environments.toys import Walk
from tests.adapters.environments.world import World

GIVEN: dict[str, Any] = {
    "score": 1.0,
    "style": math.nan,
    "length": np.float32("inf"),
    "deep": {"terms": [1.0, -math.inf]},
}
NAMES = ["style", "length", "deep.terms[1]"]
MADE = {"score": 1.0, "style": None, "length": None, "deep": {"terms": [1.0, None]}}


def strict(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_term_that_is_no_finite_number_is_none_and_flagged_whoever_gives_it(
    tmp_path: Path,
) -> None:
    flagged = {**MADE, "not_finite": NAMES}
    event = Reward(session_id="s", reward_id="r", reward=GIVEN)
    assert strict(codec.to_json(event))["reward"] == flagged
    read = codec.from_msgpack(codec.to_msgpack(event))
    assert isinstance(read, Reward)
    assert (read.reward, read.reward_invalid) == (flagged, False)
    assert checked_reward(GIVEN) == flagged
    world = World(tmp_path)
    with world.recorder() as recorder:
        env = recorded(Walk(1), recorder, score=lambda _: GIVEN)
        env.reset()
        env.step(1)
    (outcome,) = world.processed(1)[0].values()
    assert flagged.items() <= strict(bytes(outcome.reward_payload)).items()


@pytest.mark.parametrize("payload", [{"score": 1.0}, {"score": math.nan, "terms": [1, None, "x"]}])
def test_finite_terms_are_left_as_they_are(payload: dict[str, Any]) -> None:
    assert finite_terms(payload) is payload
