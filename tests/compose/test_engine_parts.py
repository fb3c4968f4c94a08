"""What the runs on a real engine lean on, as far as it shows without one.

A judge that finds everything right whatever happened shows nothing, so it is given what is wrong;
and what puts a machine's packet filter back is given one that was never used.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.samples import Sample, SessionClosed
from tests.cli.command import ended, turn
from tests.compose.engine.agents import hold
from tests.compose.engine.daemon import with_every_table
from tests.compose.engine.stand_ins import StandIn
from tests.harness import linearized


def said(turn_id: str, *prompt_ids: int) -> dict[str, Any]:
    """A turn of one sampled token, 2."""
    messages = [{"role": "user", "content": turn_id}]
    return turn(turn_id=turn_id, prompt_messages=messages, prompt_ids=[*prompt_ids], output_ids=[2])


def whole(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Two turns, the second asked behind the first's answer."""
    for event in (first, second):
        event["logprobs"] = [-0.5]
    answer = [*first["prompt_messages"], first["response_message"]]
    second["prompt_messages"] = [*answer, *second["prompt_messages"]]
    return [first, second]


CHAIN = whole(said("t1", 1), said("t2", 1, 2, 3))
FORKED = whole(said("t1", 1), said("t2", 1, 9, 3))


def result(*events: dict[str, Any]) -> tuple[SessionClosed, list[Sample]]:
    """The outcome and the samples of one session."""
    made = linearized([*events], profile="lossless")

    def records(lines: list[dict[str, Any]]) -> list[Any]:
        return [codec.from_json(json.dumps(line).encode()) for line in lines]

    (outcome,) = records(made.closed)
    return outcome, records(made.samples)


def test_a_session_with_every_answer_in_its_place_is_right() -> None:
    outcome, samples = result(*CHAIN, ended())
    hold("s", 2, outcome, samples)


WRONG = {
    "an answer that is not in the log": (3, [*CHAIN, ended()]),
    "an answer beside the others": (2, [*FORKED, ended()]),
    "an end that is not the agent's": (2, [*CHAIN, ended(end_status="truncated")]),
    "another reward": (2, [*CHAIN, ended(reward=0.5)]),
}


@pytest.mark.parametrize(("turns", "events"), WRONG.values(), ids=WRONG)
def test_what_an_agent_did_not_see_so_is_found(turns: int, events: list[dict[str, Any]]) -> None:
    outcome, samples = result(*events)
    with pytest.raises(AssertionError):
        hold("s", turns, outcome, samples)


def test_a_packet_filter_that_nobody_used_is_put_back_empty() -> None:
    used = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n"
    complete = with_every_table(used)
    assert complete.startswith(used)
    assert [line for line in complete.splitlines() if line.startswith("*")] == [
        "*filter",
        "*nat",
        "*raw",
    ]
    assert with_every_table(complete) == complete


def test_an_image_is_made_anew_when_anything_of_it_has_changed(tmp_path: Path) -> None:
    jars = tmp_path / "libs"
    jars.mkdir()
    (jars / "one.jar").write_bytes(b"1")
    image = StandIn("kafka", "apache/kafka:4.3.1", {"libs": jars}, {"SSL_CERT_FILE": "/ca.pem"})
    digests = {image.digest("base"), image.digest("another base")}
    (jars / "classes.jsa").write_bytes(b"what a run of the broker made")
    assert image.digest("base") in digests
    (jars / "one.jar").write_bytes(b"2")
    digests.add(image.digest("base"))
    digests.add(StandIn("kafka", image.tag, image.files).digest("base"))
    assert len(digests) == 4
