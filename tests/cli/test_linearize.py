"""`turnstream linearize`: what goes in, what comes out, and that nothing stops it half-way."""

import io
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.packed import Packed
from streams.cli.event_lines import read_events
from streams.cli.offline import run_file
from streams.core.packing import unpacked
from streams.core.state import Rules
from tests.cli.command import ANSWER, COMMAND, USER, ended, lines, turn, turnstream


def test_a_session_gives_its_samples_and_then_its_outcome() -> None:
    ran = turnstream("linearize", given=lines(turn(), ended()))
    assert (ran.code, ran.err) == (0, "")
    sample, outcome = ran.records
    assert sample["tokens"] == [1, 2, 3, 4]
    assert sample["loss_mask"] == [[2, 4]]
    assert sample["logprobs"] == [0.0, 0.0, -0.5, -0.25]
    assert (sample["reward"], sample["session_reward"]) == (1.0, 1.0)
    assert outcome["sample_ids"] == [sample["sample_id"]]
    assert outcome["ledger"] == [{"turn_id": "t1", "attach": "root", "generated": 2, "trained": 2}]


def test_a_sample_writes_its_fixed_fields_even_when_they_are_empty() -> None:
    ran = turnstream("linearize", given=lines(turn(logprobs=None), ended(reward=0)))
    fixed = "sample_id session_id index count tokens prompt_len loss_mask logprobs reward"
    fixed += " session_reward policy revision"
    assert set(fixed.split()) <= set(ran.records[0])
    assert ran.records[0]["reward"] == 0.0


def test_packed_is_one_line_a_session_and_unpacks_to_the_samples() -> None:
    other = turn(turn_id="t2", prompt_ids=[1, 7], output_ids=[8], logprobs=[-0.5])
    given = lines(turn(), other, ended())
    plain = turnstream("linearize", "--profile", "lossless", given=given)
    ran = turnstream("linearize", "--profile", "lossless", "--packed", given=given)
    tree, outcome = ran.records
    assert [node["tokens"] for node in tree["nodes"]] == [[1], [2, 3, 4], [7, 8]]
    assert outcome == plain.records[-1]
    read = codec.from_json(json.dumps(tree).encode())
    assert isinstance(read, Packed)
    samples = [json.loads(codec.to_json(sample)) for sample in unpacked(read)]
    assert samples == plain.records[:-1]


def test_a_file_and_standard_input_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), ended()))
    assert turnstream("linearize", file) == turnstream("linearize", given=file.read_bytes())


def test_sessions_come_out_as_they_close_and_open_ones_at_the_end() -> None:
    given = lines(turn("a"), turn("b"), ended("b"), turn("c"))
    ran = turnstream("linearize", "--default-reward", "0.5", given=given)
    closed = [r for r in ran.records if r["type"] == "session_closed"]
    assert [(r["session_id"], r.get("implied_end", False)) for r in closed] == [
        ("b", False),
        ("a", True),
        ("c", True),
    ]
    assert [r["reward"] for r in ran.records if r["type"] == "sample"] == [1.0, 0.5, 0.5]


def test_open_skip_leaves_open_sessions_out() -> None:
    given = lines(turn("a"), turn("b"), ended("b"))
    ran = turnstream("linearize", "--open", "skip", given=given)
    assert {r["session_id"] for r in ran.records} == {"b"}


def test_without_a_reward_there_is_an_outcome_and_no_sample() -> None:
    ran = turnstream("linearize", given=lines(turn(), ended(reward=None)))
    (outcome,) = ran.records
    assert outcome["withheld"] == "no_reward"
    assert outcome["ledger"][0]["untrained"] == {"no_reward": 2}


def test_a_late_reward_is_numbered_by_its_line_or_its_position_in_the_dumped_log() -> None:
    late = {"type": "reward", "session_id": "s", "reward_id": "r", "reward": 0.25}
    by_line = turnstream("linearize", given=lines(turn(), b"", ended(), late))
    dumped = [event | {"position": 70 + i} for i, event in enumerate((turn(), ended(), late))]
    by_position = turnstream("linearize", given=lines(*dumped))
    assert [r["revision"] for r in by_line.records if r["type"] == "sample_revised"] == [4]
    assert [r["revision"] for r in by_position.records if r["type"] == "sample_revised"] == [72]


def test_lines_without_a_position_follow_the_last_one_that_named_it() -> None:
    given = lines(turn() | {"position": 1000}, ended())
    assert [r["type"] for r in turnstream("linearize", given=given).records] == [
        "sample",
        "session_closed",
    ]


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5_000], ids=["float", "integer"])
def test_a_position_is_read_beside_numbers_that_no_reader_holds(number: bytes) -> None:
    opened = b'{"type":"session_opened","session_id":"s","metadata":{"a":%s},"position":7}' % number
    ran = turnstream("linearize", given=lines(opened, turn(), ended()))
    assert (ran.code, ran.err) == (0, "")
    assert number.decode() in ran.out


Place = tuple[int, int]


def dumped(*events: tuple[dict[str, Any], Place]) -> bytes:
    """Lines as `export events` writes them of a log with several partitions."""
    return lines(*(e | {"position": at, "partition": part} for e, (part, at) in events))


def grown(count: int) -> list[dict[str, Any]]:
    """A conversation of so many turns, and its end."""
    messages: list[Any] = []
    turns = []
    for n in range(count):
        messages = [*messages, {"role": "user", "content": f"{n}?"}]
        turns.append(
            turn(turn_id=f"t{n}", prompt_messages=messages, prompt_ids=[*range(3 * n + 1)])
            | {"output_ids": [3 * n + 1, 3 * n + 2]}
        )
        messages = [*messages, turns[-1]["response_message"]]
    return [*turns, ended(reward_pending=True)]


def test_a_dump_of_several_partitions_is_taken_in_its_order() -> None:
    events = grown(4)
    whole = turnstream("linearize", given=lines(*events)).records
    places = [(0, 7), (2, 3), (2, 9), (0, 8), (1, 0)]
    dump = dumped(*zip(events, places, strict=True))
    assert whole[-1]["trained"] == 8
    ran = turnstream("linearize", given=dump)
    assert (ran.records, ran.err) == (whole, "")
    assert turnstream("linearize", given=2 * dump) == ran


def test_a_dump_whose_sessions_keep_to_their_partitions_keeps_its_positions() -> None:
    late = {"type": "reward", "session_id": "s", "reward_id": "r", "reward": 0.25}
    other = [event | {"session_id": "other"} for event in (turn(), ended(), late)]
    events = [e for pair in zip((turn(), ended(), late), other, strict=True) for e in pair]
    places = [(0, 70), (1, 7), (0, 71), (1, 8), (0, 72), (1, 9)]
    ran = turnstream("linearize", given=dumped(*zip(events, places, strict=True)))
    revised = [r for r in ran.records if r["type"] == "sample_revised"]
    assert {r["session_id"]: r["revision"] for r in revised} == {"s": 72, "other": 9}


EXPIRED = {"type": "session_expired", "session_id": "s", "cause": "idle"}
EXPIRIES: dict[str, tuple[int, int, bool]] = {
    "the newest": (0, 8, True),
    "one before it": (0, 7, False),
    "the newest of another partition": (2, 9, False),
    "where the newest of another one stands here": (2, 10, False),
}


@pytest.mark.parametrize(("partition", "named", "closes"), EXPIRIES.values(), ids=EXPIRIES)
def test_an_expiry_counts_if_it_names_the_newest_event_of_the_dump(
    partition: int, named: int, closes: bool
) -> None:
    first, second, third, _ = grown(3)
    expired = EXPIRED | {"last_offset": named}
    placed = [(first, (0, 7)), (second, (2, 9)), (third, (0, 8)), (expired, (partition, 12))]
    dump = dumped(*placed)
    closed = turnstream("linearize", "--open", "skip", given=dump).records
    assert [r["end_status"] for r in closed] == (["expired"] if closes else [])


@pytest.mark.parametrize("seed", range(20))
def test_wherever_its_events_were_a_session_gives_the_same(seed: int) -> None:
    """In the core alone: each partition in order, the partitions in any."""
    chance, events = random.Random(seed), grown(12)
    ends: Counter[int] = Counter({part: chance.randrange(20) for part in range(3)})
    places: list[Place] = []
    for _ in events:
        part = chance.choice([0, 0, 0, 1, 2])
        ends[part] += chance.randrange(1, 4)
        places.append((part, ends[part]))
    dump = dumped(*zip(events, places, strict=True))
    read = list(read_events(io.BytesIO(dump)))
    positions = [line.position for line in read]
    assert positions == sorted(set(positions))
    assert [line.named for line in read] == [at for _, at in places]
    assert given_back(dump) == given_back(lines(*events))


def given_back(text: bytes) -> list[Any]:
    effects = [e for _, e, _ in run_file(io.BytesIO(text), Rules())]
    return [codec.to_json(record) for one in effects for record in one.records()]


def test_a_file_given_twice_gives_the_same() -> None:
    example = Path(__file__).parents[2] / "examples" / "session.jsonl"
    once = turnstream("linearize", given=example.read_bytes())
    assert turnstream("linearize", given=2 * example.read_bytes()) == once


def test_a_threshold_alone_leaves_sessions_the_profile_they_asked_for() -> None:
    opened = {"type": "session_opened", "session_id": "s", "policy": "slime"}
    ran = turnstream("linearize", "--fork-threshold", "5", given=lines(opened, turn(), ended()))
    assert ran.records[0]["policy"].startswith("slime+")


@pytest.mark.parametrize("closing", [">/dev/full", ">&-", "<&-"])
def test_a_broken_stream_is_told_without_a_traceback(closing: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), ended()))
    source = "" if closing == "<&-" else f"< {file}"
    run = subprocess.run(
        f"{COMMAND} linearize {source} {closing}",
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert run.returncode not in (0, 120)
    assert b"Traceback" not in run.stderr
    assert run.stderr


def test_the_profile_and_its_threshold_choose_the_rules() -> None:
    drifted = turn(
        turn_id="t2",
        prompt_messages=[USER, ANSWER, {"role": "user", "content": "v"}],
        prompt_ids=[1, 2, 3, 9, 5],
        output_ids=[6],
        logprobs=[-1.0],
    )
    given = lines(turn(), drifted, ended())

    def masks(*options: str) -> list[Any]:
        records = turnstream("linearize", *options, given=given).records
        return [(r["tokens"], r["loss_mask"]) for r in records if r["type"] == "sample"]

    realigned = [([1, 2, 3, 9, 5, 6], [[5, 6]])]
    forked = [([1, 2, 3, 4], [[2, 4]]), ([1, 2, 3, 9, 5, 6], [[5, 6]])]
    assert masks() == masks("--profile", "seed") == realigned
    assert masks("--profile", "slime") == masks("--profile", "slime", "--fork-threshold", "2")
    assert masks("--profile", "slime", "--fork-threshold", "2") == realigned
    assert masks("--profile", "lossless") == forked
    assert masks("--profile", "slime", "--fork-threshold", "1") == forked
    assert masks("--fork-threshold", "0") == forked


def test_a_profile_of_ones_own_is_a_toml_table(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('name = "mine"\nbase = "lossless"\nreward_share = "split"\n')
    ran = turnstream("linearize", "--profile", profile, given=lines(turn(), ended()))
    name, _, digest = ran.records[0]["policy"].partition("+")
    assert name == "mine"
    assert len(digest) == 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--profile", "sead"], "no profile 'sead'; there are seed, slime, lossless"),
        (["--profile", "missing.toml"], "missing.toml"),
        (["--default-reward", "nan"], "finite number"),
        (["--fork-threshold", "many"], "not a valid integer"),
        (["nowhere.jsonl"], "No such file"),
    ],
)
def test_a_wrong_call_says_what_would_be_right(options: list[str], told: str) -> None:
    ran = turnstream("linearize", *options)
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_a_bad_line_costs_that_line_only() -> None:
    given = lines(turn("a"), b"{not json", turn("b"), turn("a", "t2", logprobs=[-1.0]), ended("a"))
    ran = turnstream("linearize", "--default-reward", "1", given=given)
    assert ran.code == 1
    assert [(x["code"], x["line"], x.get("session_id"), x.get("turn_id")) for x in ran.letters] == [
        ("undecodable", 2, None, None),
        ("length_mismatch", 4, "a", "t2"),
    ]
    assert [r["session_id"] for r in ran.records if r["type"] == "session_closed"] == ["a", "b"]
    assert next(r for r in ran.records if r["type"] == "session_closed")["refused"] == 1


def test_dead_letters_in_a_file_keep_the_untouched_line(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    ran = turnstream("linearize", "--dead-letters", file, given=lines(b"{not json"))
    assert (ran.code, ran.err) == (1, "")
    assert bytes.fromhex(json.loads(file.read_text())["payload"]) == b"{not json"


def test_a_reader_that_goes_away_causes_no_traceback() -> None:
    given = lines(*(event for k in range(3000) for event in (turn(f"s{k}"), ended(f"s{k}"))))
    with subprocess.Popen(
        f"{COMMAND} linearize | head -1",
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        _, err = process.communicate(given, timeout=60)
    assert b"Traceback" not in err
