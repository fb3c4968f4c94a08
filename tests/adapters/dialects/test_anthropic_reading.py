"""What of a Messages request reaches the call, field by field."""

from typing import Any

import pytest

from tests.adapters.dialects.anthropic_requests import (
    BASH,
    FETCH,
    SCHEMA,
    SEARCH,
    USER,
    assistant,
    call,
    called,
    function,
    messages,
    request,
    result,
    text,
    thought,
    user,
)

CLAUDE_CODE: dict[str, Any] = {
    "metadata": {"user_id": '{"session_id": "a"}'},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "betas": ["interleaved-thinking-2025-05-14"],
    "service_tier": "auto",
}

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the smallest request": (
        {},
        {
            "model": "qwen",
            "messages": (USER,),
            "tools": (),
            "deferred_tools": (),
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_schema": None,
            "stop": (),
            "max_tokens": 99,
            "sampling": {},
            "stream": False,
            "placeholders": 0,
            "ignored": (),
            "previous_id": None,
            "carriers": {},
            "prefill": False,
        },
    ),
    "a request to count has no limit": ({"max_tokens": None}, {"max_tokens": None}),
    "tools keep what templates print and nothing else": (
        {"tools": [BASH | {"type": "custom", "cache_control": {}, "strict": True}]},
        {"tools": (function(BASH),), "deferred_tools": ()},
    ),
    "a tool may have a name only": (
        {"tools": [{"name": "now", "description": None, "input_schema": None}]},
        {"tools": ({"type": "function", "function": {"name": "now"}},)},
    ),
    "tools that are found later are not at the head": (
        {"tools": [FETCH, BASH, BASH | {"name": "zsh", "defer_loading": True}]},
        {
            "tools": (function(BASH),),
            "deferred_tools": (function(FETCH), function(BASH | {"name": "zsh"})),
            "ignored": (),
        },
    ),
    "tools that only the vendor could find are at the head": (
        {"tools": [{"type": "tool_search_tool_bm25_20251119", "name": "search"}, FETCH]},
        {"tools": (function(FETCH),), "deferred_tools": (), "ignored": ("tools",)},
    ),
    "tools that only the vendor could run are left out": (
        {"tools": [SEARCH, BASH]},
        {"tools": (function(BASH),), "ignored": ("tools",)},
    ),
    "a tool of any type that is described can be called": (
        {"tools": [BASH | {"type": "bash_20250124"}]},
        {"tools": (function(BASH),), "ignored": ()},
    ),
    "a search that has to be done is answered in text": (
        {"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
        {"tools": (), "tool_choice": "auto", "ignored": ("tool_choice", "tools")},
    ),
    "some search has to be done": (
        {"tools": [SEARCH], "tool_choice": {"type": "any"}},
        {"tools": (), "tool_choice": "auto", "ignored": ("tool_choice", "tools")},
    ),
    "no tool has to be called": (
        {"tools": [BASH], "tool_choice": {"type": "none"}},
        {"tool_choice": "none"},
    ),
    "some tool has to be called": (
        {"tools": [BASH], "tool_choice": {"type": "any"}},
        {"tool_choice": "required", "parallel_tool_calls": True},
    ),
    "one tool has to be called": (
        {"tools": [BASH, FETCH], "tool_choice": {"type": "tool", "name": "fetch"}},
        {"tool_choice": "fetch"},
    ),
    "without tools there is no choice": (
        {"tool_choice": {"type": "none"}},
        {"tool_choice": "auto", "ignored": ()},
    ),
    "one call at a time": (
        {"tools": [BASH], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
    ),
    "JSON after a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"response_schema": SCHEMA, "ignored": ()},
    ),
    "JSON after a schema, as it was asked for before": (
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_schema": SCHEMA},
    ),
    "JSON after a schema that is not given": (
        {"output_config": {"format": {"type": "json_schema"}}},
        {"response_schema": True},
    ),
    "stop texts, in order": ({"stop_sequences": ["b", "", "a"]}, {"stop": ("b", "a")}),
    "how to sample, as asked": (
        {"temperature": 0, "top_p": 0.9, "top_k": 5},
        {"sampling": {"temperature": 0.0, "top_p": 0.9, "top_k": 5}},
    ),
    "a stream ends with its counts": ({"stream": True}, {"stream": True, "stream_usage": True}),
    "what clients always send asks for nothing": (CLAUDE_CODE, {"ignored": ()}),
    "to think as it likes is what a model does": (
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"ignored": ()},
    ),
    "what has no effect is named": (
        {
            "thinking": {"type": "disabled"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9}},
            "mcp_servers": [{"type": "url", "url": "http://127.0.0.1", "name": "a"}],
            "container": "c",
        },
        {
            "ignored": (
                "container",
                "context_management",
                "effort",
                "mcp_servers",
                "task_budget",
                "thinking",
            )
        },
    ),
    "null is not given": (
        dict.fromkeys(
            (
                "system",
                "tools",
                "tool_choice",
                "stop_sequences",
                "stream",
                "output_config",
                "temperature",
                "thread",
                "compaction",
                "thinking",
                "context_management",
                "container",
                "mcp_servers",
            )
        ),
        {"messages": (USER,), "tools": (), "sampling": {}, "ignored": (), "stream": False},
    ),
}


@pytest.mark.parametrize(("fields", "expected"), FIELDS.values(), ids=FIELDS)
def test_a_field_reaches_the_call(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    read = call(**fields)
    assert {name: getattr(read, name) for name in expected} == expected


LS = {"id": "toolu_1", "type": "function", "function": {"name": "bash", "arguments": {"a": 1}}}
FOUND = {"type": "search_result", "title": "T", "source": "S", "content": [text("found")]}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "plain"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}}

CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a loop with a tool": (
        [USER, assistant(thought("hm"), "Wait.", called({"a": 1})), user(result("4 MB"), "Go on.")],
        [
            USER,
            {
                "role": "assistant",
                "content": "Wait.",
                "reasoning_content": "hm",
                "tool_calls": [LS],
            },
            {"role": "tool", "content": "4 MB", "tool_call_id": "toolu_1", "name": "bash"},
            {"role": "user", "content": "Go on."},
        ],
    ),
    "results stay in the order they came in, with what was said between them": (
        [
            assistant(called({"a": 1}), called({"a": 2}, id="toolu_2", name="zsh")),
            user(result("two", tool_use_id="toolu_2"), "so", result([text("o"), text("ne")]), "go"),
        ],
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    LS,
                    {
                        "id": "toolu_2",
                        "type": "function",
                        "function": {"name": "zsh", "arguments": {"a": 2}},
                    },
                ],
            },
            {"role": "tool", "content": "two", "tool_call_id": "toolu_2", "name": "zsh"},
            {"role": "user", "content": "so"},
            {"role": "tool", "content": "o\nne", "tool_call_id": "toolu_1", "name": "bash"},
            {"role": "user", "content": "go"},
        ],
    ),
    "a system message stays where it stands": (
        [USER, {"role": "system", "content": "Now in /tmp."}, assistant("ok"), USER],
        [
            USER,
            {"role": "system", "content": "Now in /tmp."},
            {"role": "assistant", "content": "ok"},
            USER,
        ],
    ),
    "a system message that only sets something says nothing": (
        [USER, {"role": "system", "content": [], "output_config": {"effort": "low"}}],
        [USER],
    ),
    "an answer is one text, whatever blocks it came in": (
        [USER, assistant("Let me ", " \n", "see.\n\n", called({"a": 1}), "Done.")],
        [
            USER,
            {"role": "assistant", "content": "Let me see.\n\nDone.", "tool_calls": [LS]},
        ],
    ),
    "what an assistant says side by side is one turn": (
        [USER, assistant("one"), assistant("two")],
        [USER, {"role": "assistant", "content": "onetwo"}],
    ),
    "input that was no JSON is the text it was": (
        [assistant(called({"__unparsedToolInput": {"raw": '{"a": ', "len": 6}}))],
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [LS | {"function": {"name": "bash", "arguments": '{"a": '}}],
            }
        ],
    ),
    "a result of a call that is not there has no name": (
        [user(result("4 MB"))],
        [{"role": "tool", "content": "4 MB", "tool_call_id": "toolu_1"}],
    ),
    "a tool that gave nothing": (
        [user(result())],
        [{"role": "tool", "content": "", "tool_call_id": "toolu_1"}],
    ),
    "a tool that failed without a word": (
        [user(result([], is_error=True))],
        [{"role": "tool", "content": "[error]", "tool_call_id": "toolu_1"}],
    ),
    "a tool that failed and says so": (
        [user(result("No such file.", is_error=True))],
        [{"role": "tool", "content": "No such file.", "tool_call_id": "toolu_1"}],
    ),
    "a user who says nothing": ([user()], [{"role": "user", "content": ""}]),
    "texts with a source": (
        [user(FOUND, {"type": "document", "title": "D", "context": "C", "source": PLAIN})],
        [{"role": "user", "content": "T\nS\nfound\nD\nC\nplain"}],
    ),
    "a document made of blocks": (
        [user({"type": "document", "source": {"type": "content", "content": [text("a"), IMAGE]}})],
        [{"role": "user", "content": "a\n[image omitted]"}],
    ),
    "a tool that leaves": (
        [USER, {"role": "system", "content": [{"type": "tool_removal", "tool": {"name": "bash"}}]}],
        [USER, {"role": "system", "content": "The tool bash can no longer be called."}],
    ),
}


@pytest.mark.parametrize(("given", "expected"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation_is_read_in_its_order(
    given: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert messages(*given) == expected


def test_the_instructions_come_first_without_the_billing_line() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.325.a1b; cc_entrypoint=cli;"
    told = {"role": "system", "content": "Be brief.\nBe kind."}
    blocks = [text("Be brief."), text("Be kind.", cache_control={"type": "ephemeral"})]
    assert messages(USER, system=[text(billing), *blocks]) == [told, USER]
    assert messages(USER, system=f"{billing}\nBe brief.\nBe kind.") == [told, USER]
    assert messages(USER, system=billing) == [USER]
    assert messages(USER, system="") == [USER]


def test_carriers_stand_at_the_place_of_their_message() -> None:
    sealed = {"type": "redacted_thinking", "data": "rs_3"}
    read = call(
        system="Be brief.",
        messages=[
            USER,
            assistant(thought("hm", "rs_1"), "a", thought("", "rs_2"), called({})),
            user(result("x")),
            assistant(thought("", "")),
            USER,
            assistant(sealed, sealed, "b"),
        ],
    )
    assert read.carriers == {2: ("rs_1", "rs_2"), 6: ("rs_3",)}
    assert read.messages[2]["reasoning_content"] == "hm"
    assert [read.messages[place] for place in (4, 6)] == [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "b"},
    ]


def test_a_trailing_answer_is_gone_on_with() -> None:
    read = call(messages=[USER, assistant("The size is")])
    assert (read.prefill, read.messages[-1]["content"]) == (True, "The size is")


def test_what_is_asked_twice_streamed_and_not_is_the_same_conversation() -> None:
    one, other = (call(stream=stream, tools=[BASH]) for stream in (True, False))
    assert (one.messages, one.tools) == (other.messages, other.tools)


def test_a_body_may_be_in_any_escape() -> None:
    assert rb"\u00e9" in request(system="é")
    assert call(system="é").messages[0]["content"] == "é"
