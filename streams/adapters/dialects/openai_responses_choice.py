"""Which tool a Responses request wants to be called.

    a word: auto, none, required      as it is
    function, custom                  the name of its function
    allowed_tools                     the one tool, if it is one and required; else its mode, and
                                      that the others may be called too is counted
    anything else                     a tool of the API's own server: auto, counted

Invariant: a choice that is carried can be met: the tool is there.
"""

import msgspec

from streams.adapters.dialects.common import refused
from streams.adapters.dialects.openai_responses_tools import Tools, function_name

_TOOL_CHOICES = ("auto", "none", "required")


class GivenChoice(msgspec.Struct):
    """What has to be called, as a client spells it."""

    type: str | None = None
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: "list[GivenChoice] | None" = None


def read_tool_choice(choice: str | GivenChoice | None, tools: Tools) -> tuple[str, list[str]]:
    """The choice, and what of it is not carried."""
    if choice is None:
        return "auto", []
    if isinstance(choice, str):
        return _read_choice_word(choice, tools, "tool_choice")
    match choice.type:
        case "function" | "custom":
            return _read_named(choice, tools), []
        case "allowed_tools":
            return _read_allowed(choice, tools)
        case _:
            # It asks for a tool of the API's own server.
            return "auto", ["tool_choice"]


def _read_choice_word(choice: str, tools: Tools, param: str) -> tuple[str, list[str]]:
    if choice not in _TOOL_CHOICES:
        raise refused(param, "has to be auto, none, required or name a tool")
    if tools.callable:
        return choice, []
    if choice != "required":
        return "auto", []
    if not tools.ignored:
        raise refused(param, "is 'required', but there are no `tools`")
    return "auto", ["tool_choice"]


def _read_named(choice: GivenChoice, tools: Tools) -> str:
    if not choice.name:
        raise refused("tool_choice.name", "is missing")
    name = function_name(choice.name, choice.namespace)
    if name in _TOOL_CHOICES:
        raise refused("tool_choice.name", f"is {name!r}, a word with another meaning here")
    if name not in tools.spellings:
        raise refused("tool_choice.name", f"is {name!r:.80}, which is not in `tools`")
    return name


def _read_allowed(choice: GivenChoice, tools: Tools) -> tuple[str, list[str]]:
    mode, ignored = _read_choice_word(choice.mode or "auto", tools, "tool_choice.mode")
    allowed = {
        function_name(tool.name, tool.namespace) for tool in choice.tools or () if tool.name
    } & set(tools.spellings)
    if mode == "required" and len(allowed) == 1 and not allowed & set(_TOOL_CHOICES):
        return allowed.pop(), ignored
    # All tools stay at the head, where the prompt has them; the model may call any.
    return mode, ignored if allowed == set(tools.spellings) else ["tool_choice"]
