"""Routed experts that cannot be read: the tokens beside them can, and why is said."""

import base64
import io
from typing import Any

import msgspec
import numpy as np
import pytest

from streams.adapters.engines.sglang import SglangWire
from streams.adapters.engines.vllm import VllmWire
from streams.adapters.engines.wire import Wire
from tests.adapters.engines.standins.kinds import asks


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def saved(array: Any, save: Any = np.save) -> str:
    file = io.BytesIO()
    save(file, array)
    return coded(file.getvalue())


def sglang(told: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"completion_tokens": 2, "finish_reason": {"type": "stop"}}
    meta |= {"output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]], "routed_experts": told}
    return {"output_ids": [7, 8], "meta_info": meta}


def vllm(told: str) -> dict[str, Any]:
    content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -0.25}]
    choice = {"token_ids": [7, 8], "logprobs": {"content": content}, "finish_reason": "stop"}
    return {"choices": [choice | {"routed_experts": told}]}


CASES: dict[str, tuple[Wire, dict[str, Any]]] = {
    "letters of no code": (SglangWire(), sglang("***")),
    "letters that are no ASCII": (SglangWire(), sglang("é")),
    "no whole rows": (SglangWire(), sglang(coded(bytes(9)))),
    "letters that are no ASCII, vLLM": (VllmWire(), vllm("é")),
    "no array": (VllmWire(), vllm(coded(b"1234"))),
    "several arrays": (VllmWire(), vllm(saved(np.zeros(2), np.savez))),
    "of one token": (VllmWire(), vllm(saved(np.zeros((1, 3), np.int32)))),
    "of no dimension": (VllmWire(), vllm(saved(np.int32(2)))),
    "words": (VllmWire(), vllm(saved(np.array(["a", "b"])))),
    "no whole numbers": (VllmWire(), vllm(saved(np.zeros((2, 3))))),
    "objects": (VllmWire(), vllm(saved(np.array([None, {}])))),
}


@pytest.mark.parametrize(("wire", "event"), CASES.values(), ids=CASES)
def test_what_cannot_be_read_costs_no_token(wire: Wire, event: dict[str, Any]) -> None:
    tokens = wire.answer(asks(routed_experts=True)).tokens(msgspec.json.encode(event))
    assert tokens is not None
    assert (tokens.ids, tokens.logprobs, tokens.finish) == ((7, 8), (-0.5, -0.25), "stop")
    assert tokens.routed_experts is None
    assert tokens.experts_wrong


def test_rows_in_another_order_of_memory_are_the_same_rows() -> None:
    rows = np.asfortranarray(np.arange(12, dtype=np.int16).reshape(2, 3, 2))
    answer = VllmWire().answer(asks(routed_experts=True))
    tokens = answer.tokens(msgspec.json.encode(vllm(saved(rows))))
    assert tokens is not None
    assert tokens.routed_experts is not None
    assert tokens.routed_experts.data == np.arange(12, dtype=np.int16).tobytes()
