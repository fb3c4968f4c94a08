"""Three APIs as a scripted client meets them: raw requests, events as they come, errors.

    Wire      one API: where it is asked, how its events and errors look, what its clients keep
    asking()  one request on a connection of its own, torn down at the end, whatever is left

Invariant: an error that is not in the API's own shape fails the test that reads it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
import pytest

from streams.adapters.engines.scripted import Rule, Script
from tests.adapters.gateway.agents import add_delta, user
from tests.adapters.gateway.agents_kinds import Group, Talker, opened
from tests.adapters.gateway.world import World, play

Body = dict[str, Any]
Event = dict[str, Any]
DONE: Event = {"type": "[DONE]"}


@dataclass(frozen=True)
class Refused:
    """An error, in words that fit every API."""

    kind: str
    code: str | None
    message: str


class Wire(ABC):
    """One API."""

    name: str
    path: str
    count_path: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    """What its clients send beside the key."""

    def asked(self, talker: Talker, *new: str | dict[str, Any], **more: Any) -> Body:
        """A request with what was said before; what is new is kept, texts are a user's."""
        told = [user(each) if isinstance(each, str) else each for each in new]
        if told:
            talker.history.append(talker.told(told))
        parts = [part for group in talker.history for part in group]
        return {"model": "m", **talker.body(parts), **self._tools(talker), **more}

    def _tools(self, talker: Talker) -> Body:
        return {}

    @abstractmethod
    def text(self, events: Sequence[Event]) -> str:
        """What the model has said so far."""

    @abstractmethod
    def ended(self, event: Event) -> bool:
        """Whether it tells the client that the answer is whole."""

    @abstractmethod
    def idle(self, event: Event) -> bool:
        """Whether it only keeps the stream alive."""

    @abstractmethod
    def refusal(self, body: Any) -> Refused:
        """An error's body."""

    @abstractmethod
    def failed(self, event: Event) -> Refused | None:
        """An error inside a stream."""

    @abstractmethod
    def finished(self, events: Sequence[Event]) -> Group:
        """What a client keeps of a stream that broke: the parts that were whole."""

    @abstractmethod
    def calls(self, kept: Group) -> list[str]:
        """The ids of the calls in what was kept."""


class ChatWire(Wire):
    name = "chat"
    path = "/v1/chat/completions"

    def _tools(self, talker: Talker) -> Body:
        return {"tools": talker.tools} if talker.tools else {}

    def text(self, events: Sequence[Event]) -> str:
        deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)

    def ended(self, event: Event) -> bool:
        finished = any(choice["finish_reason"] for choice in event.get("choices", ()))
        return event == DONE or finished

    def idle(self, event: Event) -> bool:
        return not self.ended(event) and event["choices"][0]["delta"] == {}

    def refusal(self, body: Any) -> Refused:
        assert set(body) == {"error"}
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return Refused(error["type"], error["code"], error["message"])

    def failed(self, event: Event) -> Refused | None:
        return self.refusal(event) if "error" in event else None

    def finished(self, events: Sequence[Event]) -> Group:
        """The text so far, and the calls, which come whole."""
        answer: dict[str, Any] = {"role": "assistant", "content": None}
        for event in events:
            for choice in event.get("choices", ()):
                add_delta(answer, choice["delta"])
        return [answer]

    def calls(self, kept: Group) -> list[str]:
        return [call["id"] for message in kept for call in message.get("tool_calls", ())]


class MessagesWire(Wire):
    name = "messages"
    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"
    headers = MappingProxyType(
        {"anthropic-version": "2023-06-01", "anthropic-beta": "some-2026-01-01,other"}
    )

    def text(self, events: Sequence[Event]) -> str:
        return "".join(event.get("delta", {}).get("text", "") for event in events)

    def ended(self, event: Event) -> bool:
        return event["type"] in ("message_delta", "message_stop")

    def idle(self, event: Event) -> bool:
        return event == {"type": "ping"}

    def refusal(self, body: Any) -> Refused:
        assert (set(body), body["type"]) == ({"type", "error"}, "error")
        error = body["error"]
        assert {"type", "message"} <= set(error) <= {"type", "message", "details"}
        return Refused(error["type"], error.get("details", {}).get("error_code"), error["message"])

    def failed(self, event: Event) -> Refused | None:
        return self.refusal(event) if event["type"] == "error" else None

    def finished(self, events: Sequence[Event]) -> Group:
        """The blocks that ended."""
        blocks: list[dict[str, Any]] = []
        whole = 0
        for event in events:
            match event["type"]:
                case "content_block_start":
                    blocks.append(dict(event["content_block"]))
                case "content_block_delta":
                    _add(blocks[event["index"]], event["delta"])
                case "content_block_stop":
                    whole += 1
        kept = [{k: v for k, v in block.items() if k != "json"} for block in blocks[:whole]]
        return [{"role": "assistant", "content": kept}] if kept else []

    def calls(self, kept: Group) -> list[str]:
        blocks = [block for message in kept for block in message["content"]]
        return [block["id"] for block in blocks if block["type"] == "tool_use"]


class ResponsesWire(Wire):
    name = "responses"
    path = "/v1/responses"
    count_path = "/v1/responses/input_tokens"

    def text(self, events: Sequence[Event]) -> str:
        said = (e["delta"] for e in events if e["type"] == "response.output_text.delta")
        return "".join(said)

    def ended(self, event: Event) -> bool:
        return event["type"] in ("response.completed", "response.incomplete")

    def idle(self, event: Event) -> bool:
        return bool(event["type"] == "response.in_progress" and not event["response"]["output"])

    def refusal(self, body: Any) -> Refused:
        return WIRES["chat"].refusal(body)

    def failed(self, event: Event) -> Refused | None:
        """By the event that clients act on; the one that SDKs raise goes before it."""
        if event["type"] != "response.failed":
            return None
        response = event["response"]
        assert response["status"] == "failed"
        error = response["error"]
        return Refused(error["type"], error["code"], error["message"])

    def finished(self, events: Sequence[Event]) -> Group:
        """The items that are done."""
        return [e["item"] for e in events if e["type"] == "response.output_item.done"]

    def calls(self, kept: Group) -> list[str]:
        return [item["call_id"] for item in kept if item["type"] == "function_call"]


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    """One more delta of a block."""
    for name in ("text", "thinking", "signature"):
        block.update({name: block.get(name, "") + delta[name]} if name in delta else {})
    if "partial_json" in delta:
        block["json"] = block.get("json", "") + delta["partial_json"]
        block["input"] = json.loads(block["json"])


WIRES: dict[str, Wire] = {wire.name: wire for wire in (ChatWire(), MessagesWire(), ResponsesWire())}


def _plain(part: Any) -> Any:
    """What an SDK gave, as it sends it back."""
    return part.to_dict()


@asynccontextmanager
async def asking(
    world: World,
    wire: Wire,
    body: Any,
    key: str | None,
    *,
    path: str | None = None,
    **headers: str,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A request as the API's clients send it; a body of bytes goes as it is.

    It is a POST, unless the path says something else: `GET /v1/models`.
    """
    method, _, place = (path or wire.path).rpartition(" ")
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    if key is not None:
        given["authorization"] = f"Bearer {key}"
    data = body if isinstance(body, bytes) else json.dumps(body, default=_plain).encode()
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.request(
            method or "POST",
            world.gateway.base_url + place,
            data=data,
            headers={"content-type": "application/json", **wire.headers, **given},
        ) as reply,
    ):
        yield reply
        reply.close()


async def answered(
    world: World, wire: Wire, body: Any, key: str | None, **more: Any
) -> tuple[int, Any, dict[str, str]]:
    """A reply in one piece: status, JSON, headers in lower case."""
    async with asking(world, wire, body, key, **more) as reply:
        headers = {name.lower(): text for name, text in reply.headers.items()}
        return reply.status, await reply.json(), headers


async def events(reply: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """The events of a stream; whatever a line that is no event says fails the test."""
    name = None
    async for line in reply.content:
        field, _, text = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = text
        elif field == "data":
            event = DONE if text == "[DONE]" else json.loads(text)
            assert name in (None, event.get("type"))
            yield event
        else:
            assert field == "", "a comment keeps no stream alive with every client"
            name = None


Story = Callable[[World, Wire, Any], Awaitable[None]]
"""The last is the `Talker` that keeps the history."""


def for_each_api(
    *script: Rule, otherwise: Rule | None = None, **settings: Any
) -> Callable[[Story], Callable[[Path, str], None]]:
    """A test for each API: the story is told in all three, one after the other, in one world.

    Each has a session, named as the API is, and the script, to itself.
    """

    def made(story: Story) -> Callable[[Path, str], None]:
        told: dict[str, BaseException | None] = {}

        async def all_of_them(world: World) -> None:
            for name, wire in WIRES.items():
                talker = await opened(world, name, session_id=name)
                talker.tools = []
                try:
                    await story(world, wire, talker)
                except Exception as error:
                    told[name] = error
                else:
                    told[name] = None

        @pytest.mark.parametrize("api", WIRES)
        def test(tmp_path: Path, api: str) -> None:
            if api not in told:
                rules = [
                    msgspec.structs.replace(rule, routing_key=name)
                    for name in WIRES
                    for rule in script
                ]
                played = Script(answers=tuple(rules), otherwise=otherwise)
                play(tmp_path, all_of_them, played, **settings)
            error = told[api]
            if error is not None:
                raise error

        test.__name__ = story.__name__
        test.__doc__ = story.__doc__
        return test

    return made
