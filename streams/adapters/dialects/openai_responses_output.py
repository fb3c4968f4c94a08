"""The output of a response: what a model said, as the items of the API.

    reasoning   rs_A_0    its text, and the answer's carrier as what the API encrypts
    message     msg_A_1   one text
    call        fc_A_2    of a function; ctc_ of a custom tool, tsc_ of a search for tools

Invariant: every item's id names the answer and the item's place in it, and no other has it.
"""

from typing import Any, Literal

from streams.adapters.dialects.calls import Answer, Call, ToolCall
from streams.adapters.dialects.common import read_arguments
from streams.adapters.dialects.dialect import AnswerNames
from streams.adapters.dialects.openai_responses_items import item_id
from streams.adapters.dialects.openai_responses_request import spellings_of
from streams.adapters.dialects.openai_responses_tools import spelled

Item = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]

_CALL_PREFIXES = {"function": "fc_", "custom": "ctc_", "tool_search": "tsc_"}


def reasoning_item(
    names: AnswerNames | Answer, index: int, text: str | None, status: Status
) -> Item:
    """Reasoning; None is a text that has not begun."""
    return {
        "type": "reasoning",
        "id": item_id("rs_", names.id, index),
        "summary": [],
        "content": [] if text is None else [reasoning_part(text)],
        # Always: clients that were not told to ask for it lose the thought without it.
        "encrypted_content": names.carrier or None,
        "status": status,
    }


def message_item(names: AnswerNames | Answer, index: int, text: str | None, status: Status) -> Item:
    """A message; None is a text that has not begun."""
    return {
        "type": "message",
        "id": item_id("msg_", names.id, index),
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
        "status": status,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: Call, names: AnswerNames | Answer, index: int, called: ToolCall) -> Item:
    """A call, as the client spells the tool."""
    spelling = spelled(spellings_of(call), called.name)
    item: Item = {
        "type": "function_call",
        "id": item_id(_CALL_PREFIXES[spelling.kind], names.id, index),
        "call_id": called.id,
        "name": spelling.name,
        "status": "completed",
    }
    if spelling.namespace is not None:
        item["namespace"] = spelling.namespace
    match spelling.kind:
        case "function":
            item["arguments"] = called.arguments
        case "custom":
            item |= {"type": "custom_tool_call", "input": _one_text(called.arguments)}
        case "tool_search":
            found = read_arguments(called.arguments)
            item |= {"type": "tool_search_call", "execution": "client", "arguments": found}
            del item["name"]
    return item


def _one_text(arguments: str) -> str:
    """What a custom tool is called with; arguments of another shape as they were sampled."""
    match read_arguments(arguments):
        case {"input": str(text), **rest} if not rest:
            return text
    return arguments


def output(call: Call, answer: Answer) -> list[Item]:
    """All items of an answer; where it calls nothing there is a message, be it empty."""
    status: Status = "incomplete" if is_cut(answer) else "completed"
    items: list[Item] = []
    if answer.reasoning:
        items.append(reasoning_item(answer, 0, answer.reasoning, "completed"))
    if answer.text or not answer.tool_calls:
        whole = "completed" if answer.tool_calls else status
        items.append(message_item(answer, len(items), answer.text, whole))
    for called in answer.tool_calls:
        items.append(call_item(call, answer, len(items), called))
    return items


def is_cut(answer: Answer) -> bool:
    """Whether there would have been more."""
    return answer.finish_reason in {"length", "abort", "error"}
