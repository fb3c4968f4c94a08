"""Who calls: the client's own word first, then a shape that no agent's call has."""

from collections.abc import Mapping

import pytest

from streams.adapters.dialects.calls import Call, Message
from streams.adapters.gateway.classing import by_shape, told

USER: Message = {"role": "user", "content": "Name this talk."}
SAID: Message = {"role": "assistant", "content": "Done."}
BASH = {"type": "function", "function": {"name": "bash"}}
CODEX_COMPACTION = '{"request_kind": "compaction", "thread_id": "t"}'
CODEX_TURN = '{"request_kind": "turn"}'


def call(**fields: object) -> Call:
    given: dict[str, object] = {"model": "small", "messages": (USER,), **fields}
    return Call(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "told_class", "agent"),
    [
        ({}, None, None),
        ({"x-turnstream-request-class": "auxiliary"}, "auxiliary", None),
        ({"x-turnstream-request-class": "king"}, None, None),
        ({"x-claude-code-request-class": "compaction"}, "compaction", None),
        ({"x-claude-code-agent-id": "a1"}, "subagent", "a1"),
        ({"x-session-id": "s"}, None, None),
        ({"x-session-id": "s", "x-parent-session-id": "p"}, "subagent", "s"),
        ({"x-codex-turn-metadata": CODEX_COMPACTION}, "compaction", None),
        ({"x-codex-turn-metadata": CODEX_TURN, "thread-id": "t"}, None, None),
        ({"x-openai-subagent": "collab_spawn", "thread-id": "t2"}, "subagent", "t2"),
        ({"x-codex-turn-metadata": '{"request_kind": 5}'}, None, None),
        ({"x-codex-turn-metadata": "\udcff{"}, None, None),
        ({"x-codex-turn-metadata": "[" * 100_000}, None, None),
        ({"x-turnstream-agent-id": "two\nlines"}, None, None),
    ],
)
def test_headers_tell(
    headers: Mapping[str, str], told_class: str | None, agent: str | None
) -> None:
    found = told(call(), headers)
    assert (found.request_class, found.agent_id) == (told_class, agent)


def test_a_call_alone_on_another_model_than_the_agents_is_a_side_call() -> None:
    assert by_shape(call(), {"main"}) == "auxiliary"


def test_a_probe_is_a_side_call_on_any_model() -> None:
    assert by_shape(call(model="main", max_tokens=1), {"main"}) == "auxiliary"


@pytest.mark.parametrize(
    ("fields", "agent_models"),
    [
        ({}, set()),  # nobody calls with tools: it may be the agent
        ({"max_tokens": 1}, set()),
        ({"model": "main"}, {"main"}),
        ({"tools": (BASH,)}, {"main"}),
        ({"messages": (USER, SAID, USER)}, {"main"}),
        ({"previous_id": "resp_1"}, {"main"}),
    ],
)
def test_what_an_agent_may_send_has_no_class(
    fields: dict[str, object], agent_models: set[str]
) -> None:
    assert by_shape(call(**fields), agent_models) is None


def test_what_the_client_tells_is_never_overruled() -> None:
    assert by_shape(call(request_class="main"), {"main"}) == "main"
