"""Every kind of line that cannot be used: named, placed, and survived."""

import json
from typing import Any

import pytest

from tests.cli.command import ended, lines, turn, turnstream

NESTED = b'{"type":"turn","session_id":"s","turn_id":"bad","a":' + b"[" * 5000 + b"]" * 5000 + b"}"
SURROGATE = json.dumps(turn(turn_id="bad") | {"model": "\ud800"}).encode()
BASELESS = turn(turn_id="bad", base_turn_id="nobody", kept_messages=1, kept_ids=2)
OTHER_DIGEST = turn(turn_id="bad", prompt_digest="00" * 16)

BAD: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "not JSON": (b"{", "undecodable"),
    "not an object": (b"[1, 2]", "undecodable"),
    "not text": (b'{"type": "\xff"}', "undecodable"),
    "5,000 nested brackets": (NESTED, "undecodable"),
    "a lone surrogate": (SURROGATE, "undecodable"),
    "unknown type": ({"type": "tern", "session_id": "s", "turn_id": "bad"}, "unknown_type"),
    "a record, not an event": (
        {"type": "trained", "run_id": "r", "step": 1, "weight_version": 1, "sample_ids": []},
        "unknown_type",
    ),
    "unknown version": (turn(turn_id="bad", v=2), "unknown_version"),
    "logprobs too short": (turn(turn_id="bad", logprobs=[-1.0]), "length_mismatch"),
    "another digest": (OTHER_DIGEST, "digest_mismatch"),
    "unknown base": (BASELESS, "unknown_base"),
    "unknown session": ({"type": "reward", "session_id": "x", "reward": 1}, "unknown_session"),
    "NaN logprob": (turn(turn_id="bad", logprobs=[float("nan"), 0.0]), "invalid_field"),
    "infinite logprob": (turn(turn_id="bad", logprobs=[1e39, 0.0]), "invalid_field"),
    "negative id": (turn(turn_id="bad", prompt_ids=[-1]), "invalid_field"),
    "id over 2^31-1": (turn(turn_id="bad", output_ids=[2**31, 1]), "invalid_field"),
    "fractional id": (turn(turn_id="bad", prompt_ids=[1.5]), "invalid_field"),
    "ids as text": (turn(turn_id="bad", prompt_ids="12"), "invalid_field"),
    "a message that is no object": (turn(turn_id="bad", prompt_messages=["u"]), "invalid_field"),
    "turn id as number": (turn(turn_id="bad") | {"turn_id": 7}, "invalid_field"),
    "no output": ({**turn(turn_id="bad"), "output_ids": None}, "invalid_field"),
    "empty messages": (turn(turn_id="bad", prompt_messages=[]), "invalid_field"),
    "a session id with a blank": (turn("a b", "bad"), "invalid_field"),
    "a reward that is a list": (
        b'{"type":"reward","session_id":"s","reward":[NaN]}',
        "invalid_field",
    ),
    "a reward of 5,000 digits": (
        b'{"type":"reward","session_id":"s","reward":' + b"9" * 5000 + b"}",
        "invalid_field",
    ),
    "a position that is none": (turn(turn_id="bad", position=-1), "invalid_field"),
    "a position of 5,000 digits": (
        json.dumps(turn(turn_id="bad"))[:-1].encode() + b',"position":' + b"9" * 5000 + b"}",
        "invalid_field",
    ),
    "a partition that is none": (turn(turn_id="bad", position=1, partition="a"), "invalid_field"),
    "a purge above itself": ({"type": "purge", "floor": 10**12}, "invalid_field"),
    "unknown end status": (ended(end_status="fine"), "invalid_field"),
}


@pytest.fixture(scope="module")
def letters() -> list[dict[str, Any]]:
    """One file with a good session around all the bad lines."""
    bad = [line for line, _ in BAD.values()]
    ran = turnstream("linearize", given=lines(turn(), *bad, ended(), turn("after"), ended("after")))
    assert ran.code == 1
    assert "Traceback" not in ran.err
    closed = [r for r in ran.records if r["type"] == "session_closed"]
    assert [(r["session_id"], r["trained"]) for r in closed] == [("s", 2), ("after", 2)]
    return ran.letters


@pytest.mark.parametrize(("place", "name"), list(enumerate(BAD)), ids=BAD)
def test_a_bad_line_is_named_and_placed(
    place: int, name: str, letters: list[dict[str, Any]]
) -> None:
    line, code = BAD[name]
    letter = next(letter for letter in letters if letter["line"] == place + 2)
    assert letter["code"] == code
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    if b'"turn_id": "bad"' in text or b'"turn_id":"bad"' in text:
        assert letter["turn_id"] == "bad"
        assert letter["session_id"] in ("s", "a b")


def test_every_bad_line_gives_one_letter(letters: list[dict[str, Any]]) -> None:
    assert [letter["line"] for letter in letters] == list(range(2, len(BAD) + 2))


def test_a_line_of_100_mb_is_refused_without_stopping() -> None:
    long = b'{"type":"turn","session_id":"s","turn_id":"bad","x":"' + b"x" * 100_000_000 + b'"}'
    ran = turnstream("linearize", given=lines(turn(), long, ended()))
    assert ran.code == 1
    (letter,) = ran.letters
    assert (letter["code"], letter["line"]) == ("oversize", 2)
    assert "100000056 bytes" in letter["detail"]
    assert [r["type"] for r in ran.records] == ["sample", "session_closed"]
