"""How a Responses request becomes a call."""

from typing import Any

import pytest

from streams.adapters.dialects.calls import Message
from tests.adapters.dialects.responses_answers import ANSWER_ID, CARRIER, OTHER_LETTERS
from tests.adapters.dialects.responses_requests import (
    SCHEMA,
    USER,
    call,
    called,
    calling,
    messages,
    own,
    result,
    said,
    thought,
)

QUESTION = {"role": "user", "content": "How big is the repo?"}


# ---------------------------------------------------------------------------- messages


def test_a_text_is_what_the_user_says() -> None:
    assert call(input="hi").messages == ({"role": "user", "content": "hi"},)


def test_instructions_come_first() -> None:
    assert call(instructions="Be brief.").messages == (
        {"role": "system", "content": "Be brief."},
        QUESTION,
    )


def test_system_and_developer_messages_stay_where_they_are() -> None:
    found = messages(
        {"role": "developer", "content": "a"}, USER, {"role": "system", "content": "b"}
    )
    assert [(message["role"], message["content"]) for message in found] == [
        ("system", "a"),
        ("user", QUESTION["content"]),
        ("system", "b"),
    ]


def test_images_and_files_become_words_and_are_counted() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_file", "file_data": "AAAA"},
    ]
    found = call(input=[{"role": "user", "content": parts}])
    assert found.messages[0]["content"] == "look\n[image omitted]\n[file omitted]"
    assert found.placeholders == 2


# ---------------------------------------------------------------------------- answers


def test_the_items_of_one_answer_are_one_message() -> None:
    answer = [
        thought("Look.", encrypted_content=CARRIER, **own("rs_", 0)),
        said("I look.", **own("msg_", 1)),
        called('{"command": "ls"}', **own("fc_", 2)),
        called("{}", call_id="call_2", **own("fc_", 3)),
    ]
    found = call(input=[USER, *answer, result(), result("/", call_id="call_2")])
    assert found.messages == (
        QUESTION,
        calling(
            ("call_1", "bash", {"command": "ls"}),
            ("call_2", "bash", {}),
            content="I look.",
            reasoning_content="Look.",
        ),
        {"role": "tool", "content": "4 MB", "tool_call_id": "call_1", "name": "bash"},
        {"role": "tool", "content": "/", "tool_call_id": "call_2", "name": "bash"},
    )
    assert found.carriers == {1: (CARRIER, ANSWER_ID)}


def roles(*items: dict[str, Any]) -> str:
    """The messages' roles, an answer with what is in it."""
    marks = []
    for message in messages(USER, *items)[1:]:
        parts = [message["content"]] if message["role"] == "assistant" else []
        parts += [message.get("reasoning_content", "")]
        parts += [each["id"] for each in message.get("tool_calls", ())]
        marks.append(f"{message['role'][0]}({','.join(part for part in parts if part)})")
    return " ".join(marks)


OTHER = OTHER_LETTERS
BOUNDS: dict[str, tuple[tuple[dict[str, Any], ...], str]] = {
    "a broken answer and the one behind it, by ids": (
        (said("a", **own("msg_", 0)), called(**own("fc_", 0, OTHER))),
        "a(a) a(call_1)",
    ),
    "two answers that begin alike, by ids": (
        (said("a", **own("msg_", 0)), said("b", **own("msg_", 0, OTHER))),
        "a(a) a(b)",
    ),
    "two texts around a call of one answer": (
        (said("a", **own("msg_", 0)), called(**own("fc_", 1)), said("b", **own("msg_", 2))),
        "a(ab,call_1)",
    ),
    "outputs between the calls of one answer": (
        (
            called(**own("fc_", 0)),
            result(),
            called(call_id="call_2", **own("fc_", 1)),
            result(call_id="call_2"),
        ),
        "a(call_1,call_2) t() t()",
    ),
    "the user between two parts that name one answer": (
        (said("a", **own("msg_", 0)), USER, said("b", **own("msg_", 1))),
        "a(a) u() a(b)",
    ),
    "no ids: a thought begins an answer": (
        (thought("x"), said("a"), thought("y"), said("b")),
        "a(a,x) a(b,y)",
    ),
    "no ids: a text begins an answer behind a text": ((said("a"), said("b")), "a(a) a(b)"),
    "no ids: a call belongs to the text before it": ((said("a"), called()), "a(a,call_1)"),
    "no ids: a text belongs to the call before it": ((called(), said("a")), "a(a,call_1)"),
    "no ids: outputs end an answer": (
        (called(), result(), called(call_id="call_2")),
        "a(call_1) t() a(call_2)",
    ),
    "no ids: a thought that was sent as a text": (
        (said("<think>\nx\n</think>"), said("a")),
        "a(<think>\nx\n</think>a)",
    ),
    "two pieces of one thought": ((thought("x"), thought("y"), said("a")), "a(a,x\ny)"),
    "ids of another server tell nothing": (
        (
            thought("x", id="rs_68af4030592c8193"),
            said("a", id="msg_68af4034e5b481"),
            called(id="fc_68af40372"),
        ),
        "a(a,x,call_1)",
    ),
}


@pytest.mark.parametrize(("items", "expected"), BOUNDS.values(), ids=BOUNDS)
def test_where_an_answer_ends(items: tuple[dict[str, Any], ...], expected: str) -> None:
    assert roles(*items) == expected


def test_references_to_the_items_of_one_answer_are_one_message_that_is_named() -> None:
    items = [
        {"type": "item_reference", **own(prefix, at)} for at, prefix in enumerate(("rs_", "fc_"))
    ]
    found = call(input=[USER, *items, result()])
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert (found.references, found.carriers) == (frozenset({1}), {1: (ANSWER_ID,)})


def test_a_thought_is_its_text_or_else_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "s"}, {"type": "summary_text", "text": "t"}]
    for item, text in (
        (thought("x") | {"summary": summary}, "x"),
        (thought("") | {"summary": summary, "content": None}, "s\nt"),
    ):
        [message] = messages(item)
        assert message["reasoning_content"] == text


def test_a_thought_that_only_its_server_can_read_still_names_its_answer() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": CARRIER}
    found = call(input=[USER, item, said("a")])
    assert found.messages[1] == {"role": "assistant", "content": "a"}
    assert found.carriers == {1: (CARRIER,)}


def test_a_call_that_is_no_json_stays_text() -> None:
    [message] = messages(called('{"a'))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a'


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("4 MB", "4 MB"),
        (None, ""),
        ([{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "MB"}], "4\nMB"),
        ([{"type": "input_image", "image_url": "data:"}], "[image omitted]"),
        ([], ""),
        ({"size": 4}, '{"size":4}'),
        ([{"size": 4}], '[{"size":4}]'),
        (4, "4"),
    ],
)
def test_an_output_is_text(output: Any, text: str) -> None:
    assert messages(called(), result(output))[1]["content"] == text


# ---------------------------------------------------------------------------- items of servers


def test_calls_that_the_api_names_itself_are_calls() -> None:
    items: list[dict[str, Any]] = [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "call_1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt"},
        {"type": "computer_call", "call_id": "call_2", "action": {"type": "screenshot"}},
        {
            "type": "computer_call_output",
            "call_id": "call_2",
            "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"},
        },
        {"type": "shell_call", "call_id": "call_3", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "call_3", "output": [{"stdout": "a.txt"}]},
    ]
    found = call(input=items)
    assert found.messages == (
        calling(("call_1", "local_shell", {"action": items[0]["action"]})),
        {"role": "tool", "content": "a.txt", "tool_call_id": "call_1", "name": "local_shell"},
        calling(("call_2", "computer", {"action": {"type": "screenshot"}})),
        {
            "role": "tool",
            "content": "[image omitted]",
            "tool_call_id": "call_2",
            "name": "computer",
        },
        calling(("call_3", "shell", {"action": {"commands": ["ls"]}})),
        {
            "role": "tool",
            "content": '{"output":[{"stdout":"a.txt"}]}',
            "tool_call_id": "call_3",
            "name": "shell",
        },
    )
    assert found.placeholders == 1


def test_what_a_server_ran_is_told_in_the_answer() -> None:
    searched = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "size"},
    }
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": "AAAA" * 1000}
    found = call(input=[USER, searched, drawn, said("4 MB")])
    assert found.messages[1] == {
        "role": "assistant",
        "content": '[web_search_call {"action":{"type":"search","query":"size"}}]\n'
        "[image_generation_call {}]4 MB",
    }
    assert found.placeholders == 2


def test_an_approval_is_what_the_user_says() -> None:
    item = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    expected: Message = {
        "role": "user",
        "content": '[mcp_approval_response {"approval_request_id":"a","approve":true}]',
    }
    assert messages(item) == [expected]


# ---------------------------------------------------------------------------- the rest


def test_an_answer_that_is_gone_on_from_is_named_and_instructions_come_with_what_is_new() -> None:
    found = call(previous_response_id=ANSWER_ID, instructions="Be brief.", input="And now?")
    assert found.previous_id == ANSWER_ID
    assert found.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And now?"},
    )


def test_limits_and_sampling_are_carried() -> None:
    found = call(max_output_tokens=100, temperature=0.5, top_p=0.9, top_k=20, seed=1, stop="x")
    assert found.max_tokens == 100
    assert found.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 1}
    assert found.stop == ("x",)


@pytest.mark.parametrize(
    ("format_", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "name": "size", "schema": SCHEMA, "strict": True}, SCHEMA),
        ({"type": "json_schema", "name": "size"}, True),
    ],
)
def test_a_text_format_is_a_schema(format_: dict[str, Any], schema: Any) -> None:
    assert call(text={"format": format_}).response_schema == schema


def test_what_has_no_effect_is_counted_and_bookkeeping_is_not() -> None:
    asked = call(
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        max_tool_calls=3,
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low"},
        top_logprobs=2,
        truncation="auto",
    )
    assert asked.ignored == (
        "max_tool_calls",
        "top_logprobs",
        "include",
        "reasoning_effort",
        "truncation",
        "verbosity",
    )
    kept = call(
        client_metadata={"a": "b"},
        include=["reasoning.encrypted_content"],
        metadata={"a": "b"},
        prompt_cache_key="k",
        reasoning={"summary": "auto"},
        safety_identifier="s",
        service_tier="auto",
        store=False,
        stream_options={"include_obfuscation": False},
        truncation="disabled",
        user="u",
    )
    assert kept.ignored == ()
