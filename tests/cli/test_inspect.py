"""`turnstream inspect`: the drawing a person reads, and the story of a token."""

import re
import time
from pathlib import Path

import pytest

from streams.cli.inspect.session_text import ago
from tests.cli.command import ended, lines, turn, turnstream
from tests.drift.qwen3 import tokenizer_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "session.jsonl"

DRAWN = """\
session demo  completed  policy seed

turns
  t1: 2 messages, 24 prompt + 22 sampled tokens stop
  t2: 4 messages, 63 prompt + 5 sampled tokens stop
  t3: 6 messages, 80 prompt + 18 sampled tokens stop
  t4: 8 messages, 118 prompt + 6 sampled tokens stop
  t5: 2 messages, 22 prompt + 3 sampled tokens stop

tree
  ├─ system You·look·after·a·repository.
  │  user How·big·is·it?
  │  assistant bash({"command":"du·-sh·."})  <- t1 root 22/22
  │  tool 48M⇥.
  │  assistant 48·MB.  <- t2 extend 5/5
  │  user And·tests/?
  │  assistant bash({"command":"du·-sh·tests"})  <- t3 extend 0/18
  │  tool 3M⇥tests
  │  assistant 3·MB·of·it.  <- t4 realign 6/6
  └─ system Name·this·chat.
     user How·big·is·it?
     assistant Repository·size  <- t5 root 0/3

samples
  sample 1 of 1  e817381a7076a1005c327c97ddf73ccc  reward 1
  <|im_start|>system⏎
  You·look·after·a·repository.<|im_end|>⏎
  <|im_start|>user⏎
  How·big·is·it?<|im_end|>⏎
  <|im_start|>assistant⏎
  [<tool_call>⏎
  {"name":·"bash",·"arguments":·{"command":·"du·-sh·."}}⏎
  </tool_call><|im_end|>]⏎
  <|im_start|>user⏎
  <tool_response>⏎
  48M⇥.⏎
  </tool_response><|im_end|>⏎
  <|im_start|>assistant⏎
  [48·MB.<|im_end|>]⏎
  <|im_start|>user⏎
  And·tests/?<|im_end|>⏎
  <|im_start|>assistant⏎
  <tool_call>⏎
  {"name":·"bash",·"arguments":·{"command":·"du·-sh·tests"}}⏎
  </tool_call><|im_end|>⏎
  <|im_start|>user⏎
  <tool_response>⏎
  3M⇥tests⏎
  </tool_response><|im_end|>⏎
  <|im_start|>assistant⏎
  [3·MB·of·it.<|im_end|>]

ledger
  t1  root  trained 22 of 22
  t2  extend  trained 5 of 5
  t3  extend  trained 0 of 18; untrained: realigned 18
  t4  realign  trained 6 of 6
  t5  root  trained 0 of 3; untrained: auxiliary 3
  total  trained 33 of 54  reward 1

"""


def test_the_shipped_session_is_drawn_with_turns_tree_samples_and_ledger() -> None:
    ran = turnstream("inspect", EXAMPLE, "--tokenizer", tokenizer_folder())
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == DRAWN


def test_without_a_tokenizer_tokens_are_ids_with_trained_ones_in_brackets(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), ended()))
    assert "\n  1 2 [3 4]\n" in turnstream("inspect", file).out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--token", "0"], "given, not sampled: in the prompt of turn t1"),
        (
            ["--token", "24"],
            "sampled by turn t1 (root), token 0\nweight version 7\ntrains, logprob",
        ),
        (["--token", "63"], "sampled by turn t2 (extend), token 0\nweight version 7\ntrains"),
        (
            ["--token", "81"],
            "sampled by turn t3 (extend), token 1\nweight version 7\ndoes not train: realigned",
        ),
    ],
)
def test_a_token_tells_its_story(options: list[str], told: str) -> None:
    assert told in turnstream("inspect", EXAMPLE, *options).out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--token", "999"], "turnstream: session demo: sample 1 has 124 tokens, from 0\n"),
        (["--token", "1", "--sample", "5"], "turnstream: session demo gave 1 sample\n"),
    ],
)
def test_a_token_that_is_not_there_is_an_error(options: list[str], told: str) -> None:
    ran = turnstream("inspect", EXAMPLE, *options)
    assert (ran.code, ran.out, ran.err) == (1, "", told)


def test_a_threshold_below_nothing_is_a_usage_error() -> None:
    ran = turnstream("inspect", EXAMPLE, "--fork-threshold", "-1")
    assert (ran.code, ran.out) == (2, "")
    assert "-1 is not in the range x>=0" in ran.err


def test_a_time_that_is_still_to_come_is_told_as_such() -> None:
    now_ms = int(time.time() * 1000)
    assert re.fullmatch(r"in (119|120) min", ago(now_ms + 2 * 3_600_000 - 1000))
    assert ago(now_ms - 10_000) in ("10 s ago", "11 s ago")


def test_a_shared_turn_tells_where_it_trains(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "ok"}
    user = {"role": "user", "content": "u"}
    branches = [
        turn(
            turn_id=name,
            prompt_messages=[user, answer, {"role": "tool", "content": name}],
            prompt_ids=[1, 2, 3, 4, ids],
        )
        for name, ids in (("x", 5), ("y", 6))
    ]
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), *branches, ended()))
    ran = turnstream("inspect", file, "--sample", "2", "--token", "2")
    assert "context here: it trains in sample 1" in ran.out


def test_a_session_that_never_had_a_turn_is_drawn_too(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(ended(end_status="error")))
    assert "session s  error" in turnstream("inspect", file).out


def test_text_that_would_steer_a_terminal_is_spelled_out(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    message = {"role": "user", "content": "\x1b[2Jboo"}
    file.write_bytes(lines(turn(prompt_messages=[message]), ended()))
    drawn = turnstream("inspect", file).out
    assert "\x1b" not in drawn
    assert "\\u{1b}[2Jboo" in drawn


def test_only_the_named_session_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn("a"), turn("b"), ended("a"), ended("b")))
    assert "session b" in turnstream("inspect", file, "--session", "b").out
    assert "session a" not in turnstream("inspect", file, "--session", "b").out
    missing = turnstream("inspect", file, "--session", "c")
    assert missing.code == 2
    assert "does not hold session c" in missing.err


def test_bad_lines_are_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), b"{", ended()))
    ran = turnstream("inspect", file)
    assert ran.code == 1
    assert ran.err.startswith("line 2: undecodable")
    assert "total  trained 2 of 2" in ran.out
