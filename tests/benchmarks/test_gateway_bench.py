"""The gateway's benchmark works on a tiny load, and refuses figures that do not hold.

Nothing is timed here: real processes, real tokenizer, a few requests of a few tokens.
"""

import asyncio
import functools
import json
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from benchmarks.gateway import FAST, PEER, PROXY, SIDES, SMOKE, Plan, best, measure, show
from benchmarks.gateway_checks import Disagreed, check
from benchmarks.gateway_child import Server
from benchmarks.gateway_http import Connection, Reply, Serving, header, request
from benchmarks.gateway_load import CALL_ID
from benchmarks.gateway_mock import WIRES, Journal, Mock, Prepare, digest
from benchmarks.gateway_prompts import costs_by_size
from benchmarks.gateway_script import MESSAGES, Script, Shape, Writer, write
from benchmarks.gateway_wire import REQUEST_ID
from schemas.events import Turn
from schemas.record import Octets
from streams.adapters.dialects import anthropic, openai_chat
from streams.adapters.dialects.calls import Call
from streams.adapters.engines.sglang import SglangWire
from streams.adapters.engines.vllm import VllmWire
from streams.adapters.engines.wire import Wire
from tests.adapters.engines.published import Wheel, fields_of, strings_of
from tests.adapters.engines.standins.kinds import asks
from tests.adapters.gateway.prompts.prompt_setting import renderer
from tests.drift import qwen3

TINY = Shape(turns=3, history=200, system=30, question=10, answer=60, result=10, tools=2)
NAME = b"session-1"
READERS: dict[str, type[Wire]] = {
    "sglang": SglangWire,
    "sglang cumulative": SglangWire,
    "vllm": VllmWire,
}
SIZES = pytest.mark.parametrize("per_event", [1, 16, 1000])


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


def test_a_request_asks_the_same_in_both_apis() -> None:
    calls = [b"call_0"]
    chat = openai_chat.read_call(script().body(1, NAME, calls))
    other = anthropic.read_call(script().body(1, NAME, calls, MESSAGES))
    assert other.tools == chat.tools
    assert [message["role"] for message in other.messages] == [
        message["role"] for message in chat.messages
    ]
    assert identities(other) == identities(chat) == {"call_0", *earlier_calls()}


def identities(call: Call) -> set[str]:
    made = joined(message.get("tool_calls", []) for message in call.messages)
    return {each["id"] for each in made}


def earlier_calls() -> set[str]:
    return {message["tool_call_id"] for message in messages_of(0) if message["role"] == "tool"}


def test_the_first_request_has_the_asked_history() -> None:
    shortest = len(qwen().render([{"role": "user", "content": "a"}], []))
    for history in (2_000, 4_000):
        made = write(qwen(), Shape(turns=1, history=history))
        assert abs(made.prompt_tokens[0] - history) < 1_000 + shortest
        roles = [
            message["role"] for message in openai_chat.read_call(made.body(0, NAME, [])).messages
        ]
        assert roles.count("assistant") == roles.count("tool") > 0


def test_a_session_names_itself_in_what_it_asks_and_in_every_result() -> None:
    own = [message for message in messages_of(2) if message["role"] in {"user", "tool"}]
    assert len(own) > 3
    assert all(message["content"].startswith(NAME.decode()) for message in own)


def test_an_answer_has_the_asked_number_of_ids_and_ends_with_the_end_token() -> None:
    for answer in script().answers:
        assert len(answer.ids) == len(answer.logprobs) == len(answer.pieces) == TINY.answer
        assert qwen().decode(answer.ids[-1:]) == qwen3.STOP
        assert np.array_equal(np.asarray(answer.logprobs, np.float32), answer.logprobs)


def test_a_word_is_a_token() -> None:
    assert len(qwen().encode(Writer(qwen()).words(50))) == 50


def test_an_answer_shorter_than_its_call_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="no answer has only 5 tokens"):
        Writer(qwen()).answer(5)


def test_a_script_reads_back_as_it_was_written(tmp_path: Path) -> None:
    script().save(tmp_path / "script")
    assert Script.load(tmp_path / "script") == script()


class Kept(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_requests_are_whole_however_their_bytes_are_divided(step: int) -> None:
    sent = [(request("/a", {"x-session": f"s{n}"}, 40 * n), b"x" * 40 * n) for n in range(4)]
    wire = b"".join(head + body for head, body in sent)
    got: list[tuple[bytes, bytes]] = []
    serving = Serving(lambda _, head, body: got.append((head, body)))
    serving.connection_made(Kept())
    for at in range(0, len(wire), step):
        serving.data_received(wire[at : at + step])
    assert got == sent
    assert [header(head, b"x-session") for head, _ in got] == ["s0", "s1", "s2", "s3"]


def test_a_request_of_unknown_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="no content-length"):
        Serving(lambda *_: None).data_received(b"POST / HTTP/1.1\r\nhost: a\r\n\r\n")


def answered(wire: bytes, step: int) -> Reply:
    """What a client makes of an answer that comes in pieces."""

    async def story() -> Reply:
        connection = Connection()
        connection.connection_made(Kept())
        reply = asyncio.ensure_future(connection.exchange([]))
        await asyncio.sleep(0)
        for at in range(0, len(wire), step):
            assert not reply.done()
            connection.data_received(wire[at : at + step])
        return await reply

    return asyncio.run(story())


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", WIRES)
def test_an_answer_is_whole_however_its_bytes_are_divided(name: str, step: int) -> None:
    wire = served(name, per_event=16)
    reply = answered(wire, step)
    assert (reply.status, reply.body) == (200, wire.partition(b"\r\n\r\n")[2])
    assert reply.first_token_s is not None


@pytest.mark.parametrize("body", [b'{"error":"no"}', b""])
def test_an_answer_in_one_piece_may_be_an_error(body: bytes) -> None:
    head = b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert answered(head + body, step=5) == Reply(503, body, None)


def test_an_answer_of_unknown_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither chunks nor content-length"):
        Connection().data_received(b"HTTP/1.1 200 OK\r\nserver: a\r\n\r\n")


def served(name: str, per_event: int, turn: int = 0) -> bytes:
    """All that the mock writes for one turn."""

    async def story() -> bytes:
        mock, kept = Mock(script()), Kept()
        mock.prepare(
            Prepare(wire=name, per_event=per_event, tokens_per_s=FAST, turns=(0, turn + 1))
        )
        for _ in range(turn + 1):
            kept.written.clear()
            mock.answer(kept, request("/any", {"x-session": "s"}, 2), b"{}")
            async with asyncio.timeout(30):
                while not kept.written.endswith(b"\r\n0\r\n\r\n"):  # noqa: ASYNC110  # it has no event for it
                    await asyncio.sleep(0.001)
        return bytes(kept.written)

    return asyncio.run(story())


def joined(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def events_of(wire: bytes) -> list[Any]:
    """The events of an answer, but its last words."""
    chunks = wire.partition(b"\r\n\r\n")[2].split(b"\r\n")
    sizes, data = chunks[::2], chunks[1::2]
    assert [int(size, 16) for size in sizes[: len(data)]] == list(map(len, data))
    *events, done, end = [each.removeprefix(b"data: ").removesuffix(b"\n\n") for each in data]
    assert (done, end) == (b"[DONE]", b"")
    return events


@SIZES
@pytest.mark.parametrize("name", READERS)
def test_our_clients_read_every_token_of_an_answer(name: str, per_event: int) -> None:
    answer, events = script().answers[1], events_of(served(name, per_event, turn=1))
    reader = READERS[name]().answer(asks())
    came = [tokens for event in events if (tokens := reader.tokens(event))]
    assert joined(tokens.ids for tokens in came) == answer.ids
    assert joined(tokens.logprobs for tokens in came) == answer.logprobs
    assert {len(tokens.ids) for tokens in came[:-1]} <= {per_event}
    assert [tokens.finish for tokens in came] == [*[None] * (len(came) - 1), "stop"]
    assert came[-1].weight_runs == ((1, len(answer.ids)),)


@SIZES
def test_a_chat_s_events_have_text_ids_and_logprobs_and_first_the_prompt_s_ids(
    per_event: int,
) -> None:
    answer = script().answers[0]
    first, *events = map(json.loads, events_of(served("vllm chat", per_event)))
    assert len(first["prompt_token_ids"]) == script().prompt_tokens[0]
    choices = [event["choices"][0] for event in events]
    assert joined(choice["token_ids"] for choice in choices) == answer.ids
    entries = joined(choice["logprobs"]["content"] for choice in choices)
    assert [entry["logprob"] for entry in entries] == answer.logprobs
    deltas = [choice["delta"] for choice in choices]
    said = {
        name: "".join(delta.get(name, "") for delta in deltas) for name in ("reasoning", "content")
    }
    assert said["reasoning"].strip() == answer.reasoning.strip()
    assert said["content"].strip() == answer.text.strip()
    calls = joined(delta.get("tool_calls", []) for delta in deltas)
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == answer.arguments
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_the_wires_have_the_fields_of_the_published_servers() -> None:
    contract = Wheel("sglang").module("sglang/api/v1/api_types.py")
    event = json.loads(events_of(served("sglang", 16))[-1])
    assert event.keys() <= fields_of(contract, "GenerateResponse")
    written = strings_of(Wheel("sglang").text("sglang/srt/managers/tokenizer_manager.py"))
    assert event["meta_info"].keys() <= fields_of(contract, "GenerateMetaInfo") | written
    folder = "vllm/entrypoints/scale_out/token_in_token_out"
    protocol = Wheel("vllm").module(f"{folder}/protocol.py")
    event = json.loads(events_of(served("vllm", 16))[-1])
    left_out = {"prompt_token_ids", "mm_placeholders", "metrics"}
    assert event.keys() == fields_of(protocol, "GenerateTokensStreamResponse") - left_out
    (choice,) = event["choices"]
    assert choice.keys() == fields_of(protocol, "GenerateTokensStreamChoice")
    (entry, *_) = choice["logprobs"]["content"]
    assert entry.keys() == fields_of(protocol, "GenerateLogProbsContent")


ENGINE_REQUESTS: list[tuple[Wire, Callable[[dict[str, Any]], str]]] = [
    (SglangWire(), lambda event: cast(str, event["meta_info"]["id"])),
    (VllmWire(), lambda event: cast(str, event["request_id"]).removeprefix("generate-tokens-")),
]


@pytest.mark.parametrize(("wire", "id_of"), ENGINE_REQUESTS, ids=["sglang", "vllm"])
def test_the_mock_knows_our_clients_requests_and_remembers_what_it_was_asked(
    wire: Wire, id_of: Callable[[dict[str, Any]], str]
) -> None:
    request_id = "f" * len(REQUEST_ID)
    asked = asks([1, 2, 70_000], request_id=request_id, key="s")
    body = msgspec.json.encode(wire.body(asked))

    async def story() -> tuple[bytes, bytes]:
        mock, kept = Mock(script()), Kept()
        mock.prepare(
            Prepare(wire=wire.kind.lower(), per_event=1000, tokens_per_s=FAST, turns=(0, 1))
        )
        mock.answer(kept, request(wire.generate_path, wire.headers(asked), len(body)), body)
        journal = Kept()
        mock.answer(journal, b"GET /journal HTTP/1.1\r\n\r\n", b"")
        return bytes(kept.written), bytes(journal.written)

    written, told = asyncio.run(story())
    first = written.split(b"data: ")[1].partition(b"\n\n")[0]
    assert id_of(json.loads(first)) == request_id
    journal = msgspec.json.decode(told.partition(b"\r\n\r\n")[2], type=Journal)
    assert journal == Journal({"s": 1}, {"s": [digest(body)]})


@pytest.mark.parametrize(
    "event",
    [
        b'{"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function"}]}}',
        b'{"delta":{"tool_calls":[{"id":"call_1","type":"function","index":0}]}}',
        b'{"content_block":{"type":"tool_use","id":"call_1","name":"search","input":{}}}',
    ],
)
def test_the_load_finds_the_id_of_a_call(event: bytes) -> None:
    found = CALL_ID.search(event)
    assert found is not None
    assert found["id"] == b"call_1"


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


def test_every_side_is_measured_and_the_logs_hold_every_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(histories=(200,), agents={1: 2, 2: 1}, rounds=1, shape=TINY)
    made = write(qwen(), plan.script_shape(200))
    found, held = measure(made, tmp_path, plan)
    # Each of the gateway's sides opens 1 and 2 sessions, then takes its turns.
    opened, taken = 4 * (1 + 2), 4 * len(plan.per_event) * (1 * 2 + 2 * 1)
    assert held.turns == opened + taken
    assert held.built == {"render": opened, "bridge": taken}
    assert found.keys() == {
        (n, agents, side) for n in (1, 16) for agents in (1, 2) for side in SIDES
    }
    for (_, _, side), rounds in found.items():
        one = best(rounds)
        assert one.cpu_us.keys() == {"load", "mock", SIDES[side].child} - {None}
        assert min(one.p50_ms, one.first_token_p50_ms, one.per_s, *one.cpu_us.values()) > 0
    report = show(found, held, SMOKE)
    assert {row["side"] for row in report} == SIDES.keys() - bare_sides()
    assert all(row["cpu_of_peer"] == 1 for row in report if row["side"] == PEER)
    assert all(row["cpu_of_proxy"] == 1 for row in report if row["side"] == PROXY)
    assert "1 an event, 2 at a time" in capsys.readouterr().out


def bare_sides() -> set[str]:
    return {name for name, side in SIDES.items() if side.child is None}


def test_the_shortest_history_is_measured_at_the_pace_of_an_engine_too() -> None:
    paced = Plan().at_the_pace_of_an_engine()
    assert (paced.histories, paced.agents, paced.tokens_per_s) == ((4_800,), {16: 2}, 60)


def test_a_stream_takes_the_time_that_its_pace_says() -> None:
    async def story() -> float:
        mock, kept = Mock(script()), Kept()
        mock.prepare(Prepare(wire="vllm", per_event=20, tokens_per_s=100, turns=(0, 1)))
        began_s = asyncio.get_running_loop().time()
        mock.answer(kept, request("/any", {"x-session": "s"}, 2), b"{}")
        async with asyncio.timeout(30):
            while not kept.written.endswith(b"\r\n0\r\n\r\n"):  # noqa: ASYNC110  # it has no event for it
                await asyncio.sleep(0.001)
        return asyncio.get_running_loop().time() - began_s

    # Three events of 20 tokens; after the first, each waits for its time.
    assert TINY.answer == 60
    assert asyncio.run(story()) >= 0.4


def test_a_smoke_measures_one_history_once() -> None:
    assert (len(SMOKE.histories), SMOKE.rounds) == (1, 1)


def test_prompts_are_built_on_recorded_tokens_up_to_every_size() -> None:
    costs = costs_by_size(qwen(), renderer(), (600, 900), sessions=1, shape=TINY)
    assert costs.keys() == {600, 900}
    assert all(row["build_ms"] > 0 and row["read_ms"] > 0 for row in costs.values())
