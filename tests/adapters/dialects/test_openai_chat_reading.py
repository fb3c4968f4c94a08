"""What of a Chat Completions request reaches the call, field by field."""

from typing import Any

import pytest

from tests.adapters.dialects.chat_requests import BASH, SCHEMA, USER, call, called, messages

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the smallest request": (
        {},
        {
            "model": "qwen",
            "messages": (USER,),
            "tools": (),
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_schema": None,
            "stop": (),
            "max_tokens": None,
            "sampling": {},
            "stream": False,
            "stream_usage": False,
            "placeholders": 0,
            "ignored": (),
            "prefill": False,
        },
    ),
    "tools keep what templates print and nothing else": (
        {
            "tools": [
                {
                    "type": "function",
                    "cache_control": {"type": "ephemeral"},
                    "function": BASH["function"] | {"strict": True, "cache_control": {}},
                }
            ]
        },
        {"tools": (BASH,)},
    ),
    "a tool may have a name only": (
        {"tools": [{"function": {"name": "now", "description": None, "parameters": None}}]},
        {"tools": ({"type": "function", "function": {"name": "now"}},)},
    ),
    "no tool has to be called": ({"tools": [BASH], "tool_choice": "none"}, {"tool_choice": "none"}),
    "some tool has to be called": (
        {"tools": [BASH], "tool_choice": "required"},
        {"tool_choice": "required"},
    ),
    "one tool has to be called": (
        {"tools": [BASH], "tool_choice": {"type": "function", "function": {"name": "bash"}}},
        {"tool_choice": "bash"},
    ),
    "without tools there is no choice": ({"tool_choice": "none"}, {"tool_choice": "auto"}),
    "one call at a time": ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    "plain text": ({"response_format": {"type": "text"}}, {"response_schema": None}),
    "any JSON object": ({"response_format": {"type": "json_object"}}, {"response_schema": True}),
    "JSON after a schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
        {"response_schema": SCHEMA},
    ),
    "JSON after a schema that is not given": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_schema": True},
    ),
    "one stop text": ({"stop": "END"}, {"stop": ("END",)}),
    "several stop texts, in order": ({"stop": ["b", "", "a"]}, {"stop": ("b", "a")}),
    "the old limit": ({"max_tokens": 7}, {"max_tokens": 7}),
    "the new limit before the old": (
        {"max_tokens": 7, "max_completion_tokens": 9},
        {"max_tokens": 9},
    ),
    "how to sample, as asked": (
        {
            "temperature": 0,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.1,
            "frequency_penalty": -1.5,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.1,
            "seed": 2**63 - 1,
        },
        {
            "sampling": {
                "temperature": 0.0,
                "top_p": 0.9,
                "top_k": -1,
                "min_p": 0.1,
                "frequency_penalty": -1.5,
                "presence_penalty": 0.5,
                "repetition_penalty": 1.1,
                "seed": 2**63 - 1,
            }
        },
    ),
    "a stream": ({"stream": True}, {"stream": True, "stream_usage": False}),
    "a stream with counts": (
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream": True, "stream_usage": True},
    ),
    "what has no effect is named": (
        {
            "logprobs": True,
            "top_logprobs": 5,
            "reasoning_effort": "high",
            "verbosity": "low",
            "audio": {"voice": "alloy", "format": "wav"},
            "web_search_options": {"search_context_size": "low"},
            "chat_template_kwargs": {"enable_thinking": False},
        },
        {
            "ignored": (
                "audio",
                "chat_template_kwargs",
                "logprobs",
                "reasoning_effort",
                "top_logprobs",
                "verbosity",
                "web_search_options",
            )
        },
    ),
    "what asks for nothing is not": (
        {"logprobs": False, "top_logprobs": 0, "n": 1, "logit_bias": {}, "function_call": "auto"},
        {"ignored": ()},
    ),
    "bookkeeping and unknown fields": (
        {
            "store": True,
            "metadata": {"a": "b"},
            "user": "u",
            "safety_identifier": "s",
            "service_tier": "flex",
            "modalities": ["text"],
            "prediction": {"type": "content", "content": "x"},
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "moderation": {"model": "m"},
            "never_heard_of": [[[]]],
        },
        {"ignored": (), "messages": (USER,)},
    ),
    "every optional field null": (
        dict.fromkeys(
            (
                *("tools", "tool_choice", "parallel_tool_calls", "response_format", "stop"),
                *("max_tokens", "max_completion_tokens", "stream", "stream_options", "n"),
                *("temperature", "top_p", "seed", "logit_bias", "logprobs", "functions", "user"),
            )
        ),
        {"tool_choice": "auto", "parallel_tool_calls": True, "sampling": {}, "stop": ()},
    ),
    "a last message of the assistant's is gone on from": (
        {"messages": [USER, {"role": "assistant", "content": "It has"}]},
        {"messages": (USER, {"role": "assistant", "content": "It has"}), "prefill": True},
    ),
}


@pytest.mark.parametrize(("fields", "expected"), FIELDS.values(), ids=FIELDS)
def test_a_field_reaches_the_call(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = call(**fields)
    assert {name: getattr(found, name) for name in expected} == expected


MESSAGES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "system and developer messages stay where they are": (
        [
            {"role": "developer", "content": "a"},
            USER,
            {"role": "system", "content": "b"},
            {"role": "developer", "content": [{"type": "text", "text": "c"}]},
        ],
        [
            {"role": "system", "content": "a"},
            USER,
            {"role": "system", "content": "b"},
            {"role": "system", "content": "c"},
        ],
    ),
    "parts of a question are lines": (
        [{"role": "user", "content": [{"text": "a"}, {"type": "text", "text": ""}, "b"]}],
        [{"role": "user", "content": "a\nb"}],
    ),
    "parts of an answer are one text": (
        [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "a "}, {"type": "refusal", "refusal": "no"}],
            }
        ],
        [{"role": "assistant", "content": "a no"}],
    ),
    "a refusal is what was said": (
        [{"role": "assistant", "content": None, "refusal": "I will not."}],
        [{"role": "assistant", "content": "I will not."}],
    ),
    "reasoning in either spelling": (
        [
            {"role": "assistant", "content": "a", "reasoning_content": "x"},
            {"role": "assistant", "content": "b", "reasoning": "y"},
            {"role": "assistant", "content": "c", "reasoning_content": "z", "reasoning": "y"},
            {"role": "assistant", "content": "d", "reasoning": {"effort": "high"}},
        ],
        [
            {"role": "assistant", "content": "a", "reasoning_content": "x"},
            {"role": "assistant", "content": "b", "reasoning_content": "y"},
            {"role": "assistant", "content": "c", "reasoning_content": "z"},
            {"role": "assistant", "content": "d"},
        ],
    ),
    "a participant's name": (
        [{"role": "user", "content": "a", "name": "ada"}],
        [{"role": "user", "content": "a", "name": "ada"}],
    ),
    "a result gets the name of the function that was called": (
        [called("{}"), {"role": "tool", "tool_call_id": "call_1", "content": None}],
        [
            called({}) | {"content": ""},
            {"role": "tool", "content": "", "tool_call_id": "call_1", "name": "bash"},
        ],
    ),
    "a result of a call that is no longer there keeps the name it has": (
        [{"role": "tool", "tool_call_id": "call_9", "content": "x", "name": "ls"}],
        [{"role": "tool", "content": "x", "tool_call_id": "call_9", "name": "ls"}],
    ),
}


@pytest.mark.parametrize(("given", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_messages_are_read_in_place(
    given: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert messages(*given) == expected


ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "an object": ('{"command": "ls", "n": 1.0}', {"command": "ls", "n": 1.0}),
    "an object that is not text": ({"command": "ls"}, {"command": "ls"}),
    "nothing": ("", {}),
    "blanks": (" \n", {}),
    "null": (None, {}),
    "an array": ("[1]", "[1]"),
    "the word null": ("null", "null"),
    "no JSON": ('{"command": "ls', '{"command": "ls'),
    "NaN": ('{"x": NaN}', '{"x": NaN}'),
    "a number without a value": ('{"x": 1e999}', '{"x": 1e999}'),
    "a number beyond 64 bits": ('{"x": 123456789012345678901}', {"x": 123456789012345678901}),
    "a key twice": ('{"x": 1, "x": 2}', {"x": 2}),
    "half a character": (r'{"x": "\ud83d"}', {"x": "\ufffd"}),
    "a whole character": (r'{"x": "\ud83d\ude00"}', {"x": "😀"}),
    "nested beyond what a record holds": ('{"x":' + "[" * 95 + "]" * 95 + "}",) * 2,
}


@pytest.mark.parametrize(("given", "expected"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_an_object_or_the_raw_text(given: Any, expected: Any) -> None:
    [message] = messages(called(given))
    assert message["tool_calls"][0]["function"]["arguments"] == expected


def test_what_is_not_text_becomes_a_placeholder_and_is_counted() -> None:
    found = call(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"file_id": "f"}},
                    {"type": "text", "text": "what is it"},
                ],
            },
            {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
        ]
    )
    assert [message["content"] for message in found.messages] == [
        "look\n[image omitted]\n[audio omitted]\n[file omitted]\nwhat is it",
        "[audio omitted]",
    ]
    assert found.placeholders == 4
