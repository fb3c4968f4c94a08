"""The gateway's benchmark works on a tiny load, and refuses figures that do not hold.

Nothing is timed here: real processes, real tokenizer, a few requests of a few tokens.
"""

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.gateway import BARE, SIDES, best, measure, show_load, show_peer
from benchmarks.gateway_checks import Disagreed, check
from benchmarks.gateway_child import Server
from benchmarks.gateway_http import Messages, header, request
from benchmarks.gateway_mock import CHAT, Mock, Said, digest
from benchmarks.gateway_prompts import costs_by_size
from benchmarks.gateway_script import Script, Shape, Writer, write
from schemas.events import Turn
from schemas.record import Octets
from streams.adapters.dialects import openai_chat
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.drift import qwen3

TINY = Shape(turns=3, question=40, answer=60, result=10, tools=2)
NAME = b"session-1"


@functools.cache
def qwen() -> qwen3.Qwen3:
    return qwen3.load()


@functools.cache
def script() -> Script:
    return write(qwen(), TINY)


def messages_of(turn: int) -> list[dict[str, Any]]:
    calls = [f"call_{n}".encode() for n in range(turn)]
    return list(openai_chat.read_call(script().body(turn, NAME, calls)).messages)


def test_each_request_extends_the_last_with_its_answer_and_a_result() -> None:
    requests = [messages_of(turn) for turn in range(TINY.turns)]
    for number, (last, now) in enumerate(pairwise(requests)):
        assert now[: len(last)] == last
        answer, result = now[len(last) :]
        assert answer["content"] == script().answers[number].text.strip()
        assert answer["tool_calls"][0]["id"] == result["tool_call_id"] == f"call_{number}"


def test_a_session_names_itself_in_what_it_asks_and_in_every_result() -> None:
    own = [message for message in messages_of(2) if message["role"] in {"user", "tool"}]
    assert len(own) == 3
    assert all(message["content"].startswith(NAME.decode()) for message in own)


def test_an_answer_has_the_asked_number_of_ids_and_ends_with_the_end_token() -> None:
    for answer in script().answers:
        assert len(answer.ids) == len(answer.logprobs) == TINY.answer
        assert qwen().decode(answer.ids[-1:]) == qwen3.STOP


def test_a_word_is_a_token() -> None:
    assert len(qwen().encode(Writer(qwen()).words(50))) == 50


def test_an_answer_shorter_than_its_call_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="no answer has only 5 tokens"):
        Writer(qwen()).answer(5)


def test_a_script_reads_back_as_it_was_written(tmp_path: Path) -> None:
    script().save(tmp_path / "script")
    assert Script.load(tmp_path / "script") == script()


class Kept(Messages):
    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[bytes, bytes]] = []

    def arrived(self, head: bytes, body: bytes) -> None:
        self.got.append((head, body))


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_messages_are_whole_however_their_bytes_are_divided(step: int) -> None:
    sent = [(request("/a", {"x-session": f"s{n}"}, 40 * n), b"x" * 40 * n) for n in range(4)]
    wire = b"".join(head + body for head, body in sent)
    kept = Kept()
    for at in range(0, len(wire), step):
        kept.data_received(wire[at : at + step])
    assert kept.got == sent
    assert [header(head, b"x-session") for head, _ in kept.got] == ["s0", "s1", "s2", "s3"]


def test_a_message_of_unknown_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="no content-length"):
        Kept().data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")


def test_the_mock_answers_in_turn_and_remembers_what_it_was_asked() -> None:
    mock = Mock(script().answers)
    asked = [msgspec.json.encode({"input_ids": [1, 2, number]}) for number in range(2)]
    head = request("/generate", {"x-session": "s"}, 10)
    answers = [msgspec.json.decode(mock.answer(head, body)) for body in asked]
    assert [answer["output_ids"] for answer in answers] == [a.ids for a in script().answers[:2]]
    said = msgspec.json.decode(mock.answer(b"GET /journal HTTP/1.1\r\n\r\n", b""), type=Said)
    assert said == Said({"s": 2}, {"s": [digest(body) for body in asked]})


def test_the_mock_answers_chats_with_the_same_ids_and_those_of_the_prompt() -> None:
    mock = Mock(script().answers, script().prompt_tokens)
    head = request(f"{CHAT}/chat/completions", {"x-session": "s"}, 10)
    told = msgspec.json.decode(mock.answer(head, b"{}"))
    answer, choice = script().answers[0], told["choices"][0]
    assert choice["token_ids"] == answer.ids
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == answer.logprobs
    assert len(told["prompt_token_ids"]) == script().prompt_tokens[0]
    # Others look whether it is there; that is no request.
    assert mock.answer(b"GET /health HTTP/1.1\r\n\r\n", b"") == b"{}"
    said = msgspec.json.decode(mock.answer(b"GET /journal HTTP/1.1\r\n\r\n", b""), type=Said)
    assert said == Said({"s": 1}, {})


def recorded() -> tuple[dict[str, list[Turn]], dict[str, list[str]]]:
    """A log and a journal that agree."""
    prompts = [f"{number:032x}" for number in range(TINY.turns)]
    turns = [
        Turn(
            session_id="s",
            turn_id=f"t{number}",
            prompt_messages=(),
            prompt_ids=np.asarray([1, 2], np.int32),
            output_ids=np.asarray(answer.ids, np.int32),
            logprobs=np.asarray(answer.logprobs, np.float32),
            prompt_digest=Octets(bytes.fromhex(prompts[number])),
            prompt_built="bridge",
        )
        for number, answer in enumerate(script().answers)
    ]
    return {"s": turns}, {"s": prompts}


def test_a_log_that_agrees_with_the_engine_is_counted() -> None:
    turns, prompts = recorded()
    found = check(turns, prompts, script())
    assert (found.turns, found.built, found.prompt_tokens) == (TINY.turns, {"bridge": 3}, 2.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_ids", np.asarray([1], np.int32)),
        ("logprobs", np.zeros(TINY.answer, np.float32)),
        ("logprobs", None),
        ("prompt_digest", Octets(bytes(16))),
        ("prompt_digest", None),
    ],
)
def test_a_turn_with_other_ids_than_the_engine_s_is_told(field: str, value: object) -> None:
    turns, prompts = recorded()
    turns["s"][1] = msgspec.structs.replace(turns["s"][1], **{field: value})
    with pytest.raises(Disagreed, match="session s, turn t1: other ids"):
        check(turns, prompts, script())


def test_a_turn_that_the_log_lacks_is_told() -> None:
    turns, prompts = recorded()
    with pytest.raises(Disagreed, match="2 turns in the log, 3 at the engine"):
        check({"s": turns["s"][:2]}, prompts, script())
    with pytest.raises(Disagreed, match="1 sessions reached the engine, 0 the log"):
        check({}, prompts, script())


def test_a_child_that_cannot_start_is_an_error_with_its_last_words() -> None:
    with (
        pytest.raises(RuntimeError, match=r"gateway_mock does not answer(.|\n)*no-such-script"),
        Server("benchmarks.gateway_mock", "no-such-script"),
    ):
        pass


def test_every_side_is_measured_and_the_log_holds_every_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = {1: 2, 2: 4}
    found, held = measure(script(), tmp_path, agents=agents, rounds=1, warm=2)
    sessions = 2 + sum(agents.values())
    assert held.turns == sessions * TINY.turns
    assert held.built == {"render": sessions, "bridge": sessions * (TINY.turns - 1)}
    for sides in found.values():
        assert sides.keys() == SIDES.keys()
        for side, rounds in sides.items():
            one = best(rounds)
            taking_part = {"load", "mock", side} - BARE.keys()
            assert one.cpu_us.keys() == taking_part
            assert min(one.p50_ms, one.per_s, *one.cpu_us.values()) > 0
    report = show_load(found)
    show_peer(report)
    assert report.keys() == {"1", "2"}
    assert "of rllm at  1: " in capsys.readouterr().out


def test_prompts_are_built_on_recorded_tokens_up_to_every_size() -> None:
    costs = costs_by_size(qwen(), renderer(), (600, 900), sessions=1, shape=TINY)
    assert costs.keys() == {600, 900}
    assert all(row["build_ms"] > 0 and row["read_ms"] > 0 for row in costs.values())
