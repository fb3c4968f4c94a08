"""Who calls: the client's own word first, then a shape that no agent's call has."""

from collections.abc import Mapping

import pytest

from streams.adapters.dialects.calls import Call, Message
from streams.adapters.gateway.sessions.classing import Work, told

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


def working(*calls: Call) -> Work:
    work = Work()
    for made in calls:
        work.hear(made)
    return work


MAIN = call(model="main", tools=(BASH,))


def test_a_call_alone_on_another_model_than_the_agents_is_a_side_call() -> None:
    assert working(MAIN).aside(call())


def test_a_probe_is_a_side_call_on_any_model() -> None:
    assert working(MAIN).aside(call(model="main", max_tokens=1))


@pytest.mark.parametrize(
    ("fields", "before"),
    [
        ({}, []),  # nobody calls with tools: it may be the agent
        ({"max_tokens": 1}, []),
        ({}, [call(model="main", messages=(USER, SAID, USER))]),
        ({"model": "main"}, [MAIN]),
        ({"tools": (BASH,)}, [MAIN]),
        ({"deferred_tools": (BASH,)}, [MAIN]),
        ({"ignored": ("tools",)}, [MAIN]),
        ({"ignored": ("tools.web_search",)}, [MAIN]),
        ({"messages": (USER, SAID, USER)}, [MAIN]),
        ({"previous_id": "resp_1"}, [MAIN]),
        ({}, [MAIN, call(messages=(USER, SAID, USER))]),  # its model has gone on before
        ({"request_class": "main"}, [MAIN]),
    ],
)
def test_what_an_agent_may_send_is_none(fields: dict[str, object], before: list[Call]) -> None:
    assert not working(*before).aside(call(**fields))
