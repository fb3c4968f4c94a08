"""What counts as delivered, on recordings made by hand."""

from typing import Any, cast

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.samples import SessionClosed
from streams.adapters.gateway.access.minted import Kind, Minter, new_turn_id
from tests.adapters.gateway.outcomes import Outcome
from tests.adapters.gateway.world import SECRETS
from tests.clients.accounts import Account, delivered, table
from tests.clients.scene import Seen
from tests.clients.wire import Exchange, Wire

MINTER = Minter(SECRETS)
CALL_END, TURN_END = 7, 8
OUTPUT = [1, 2, CALL_END, 3, 4, CALL_END, TURN_END]
STOP: dict[str, Any] = {"type": "message_stop"}


class Recording:
    """A wire of which every byte is ours."""

    def __init__(self) -> None:
        self.wire = Wire("http://127.0.0.1:9")
        self.turns: dict[str, Turn] = {}

    def asked(self, *messages: dict[str, Any], **headers: str) -> str:
        """A request; the turn that will answer it."""
        body = msgspec.json.encode({"messages": messages})
        number = len(self.wire.exchanges)
        self.wire.exchanges.append(Exchange(number, "POST", "/v1/messages", headers, body, 0.0))
        turn_id = new_turn_id()
        self.turns[turn_id] = Turn(
            session_id="s",
            turn_id=turn_id,
            prompt_messages=(),
            prompt_ids=np.zeros(0, np.int32),
            output_ids=np.asarray(OUTPUT, np.int32),
        )
        return turn_id

    def answered(self, turn_id: str, *events: dict[str, Any], ended: bool = True) -> None:
        exchange = self.wire.exchanges[-1]
        start = {"type": "message_start", "message": {"id": answer_id(turn_id)}}
        for event in (start, *events):
            data = b"data: " + msgspec.json.encode(event) + b"\n\n"
            exchange.chunks.append((0.0, data))
        exchange.status, exchange.ended = 200, ended

    def delivered(self) -> list[int]:
        """Of each turn, in order."""
        closed = cast(SessionClosed, None)  # the wire alone says it
        found = delivered(
            Seen(self.wire, Outcome(self.turns, {}, [], closed), MINTER, CALL_END, TURN_END)
        )
        return [found[turn_id] for turn_id in self.turns]


def answer_id(turn_id: str) -> str:
    return MINTER.mint(Kind.ANSWER, "s", turn_id, index=0, prefix="msg_")


def call_of(turn_id: str, index: int) -> dict[str, Any]:
    name = MINTER.mint(Kind.TOOL_CALL, "s", turn_id, index=index, prefix="toolu_")
    return {"role": "assistant", "content": [{"type": "tool_use", "id": name}]}


def says(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}


def test_what_comes_back_and_what_ends_a_thread_is_delivered_whole() -> None:
    made = Recording()
    made.answered(first := made.asked(), STOP)
    made.answered(made.asked(call_of(first, 0), call_of(first, 1)), STOP)
    assert made.delivered() == [7, 7]


def test_what_never_comes_back_though_its_thread_goes_on_was_dropped() -> None:
    made = Recording()
    made.answered(made.asked(), STOP)
    made.answered(made.asked(), STOP)
    assert made.delivered() == [0, 7]


def test_words_alone_name_a_turn_without_ids() -> None:
    made = Recording()
    made.answered(made.asked(), says("All "), says("done."), STOP)
    made.answered(made.asked({"role": "assistant", "content": "All done."}), STOP)
    made.answered(made.asked({"role": "user", "content": "All done."}), STOP)
    assert made.delivered() == [7, 0, 7]


def test_of_a_broken_answer_the_calls_that_come_back_are_delivered() -> None:
    made = Recording()
    made.answered(first := made.asked(), ended=False)
    made.answered(made.asked(call_of(first, 0)), STOP)
    assert made.delivered() == [3, 7]


def test_of_a_broken_answer_with_its_last_call_only_the_end_was_missing() -> None:
    made = Recording()
    made.answered(first := made.asked(), ended=False)
    made.answered(made.asked(call_of(first, 0), call_of(first, 1)), STOP)
    assert made.delivered() == [7, 7]


def test_a_broken_answer_of_which_nothing_comes_back_was_dropped() -> None:
    made = Recording()
    made.answered(made.asked(), ended=False)
    assert made.delivered() == [0]


def test_a_summary_is_delivered_though_no_request_repeats_it() -> None:
    made = Recording()
    made.answered(made.asked(**{"x-claude-code-request-class": "compaction"}), STOP)
    made.answered(made.asked(**{"x-claude-code-request-class": "main"}), STOP)
    assert made.delivered() == [7, 7]


def test_agents_of_a_session_are_threads_of_their_own() -> None:
    made = Recording()
    made.answered(made.asked(**{"x-claude-code-agent-id": "one"}), STOP)
    made.answered(made.asked(**{"thread-id": "two"}), STOP)
    made.answered(made.asked(), STOP)
    assert made.delivered() == [7, 7, 7]


def test_a_refused_call_delivers_nothing() -> None:
    made = Recording()
    turn_id = made.asked()
    made.answered(turn_id, STOP)
    del made.turns[turn_id]
    assert made.delivered() == []


def test_the_table_is_markdown_with_a_row_for_each_client() -> None:
    told = Account(sessions=1, turns=2, sampled=1200, delivered=1100, trained=1100, samples=1)
    told.untrained["undelivered"] = 100
    *_, row = table([told.row("Codex")]).splitlines()
    assert row == "| Codex | 1 | 2 | 1,200 | 1,100 | 1,100 | 100 undelivered | 1 | 0 | 100 % |"
