"""How clients send an answer back, quirk by quirk, and what becomes of its tokens.

Each row is an answer as it was sampled and recorded, and the same answer as one client or
another returns it. `lost` is how many tokens of the turn a gateway loses that renders the
returned form anew with the stock template: sampled tokens, all of them.
"""

from dataclasses import dataclass

from streams.adapters.dialects.calls import Message
from tests.adapters.gateway.prompts.prompt_setting import STOP, call, result, said, user

THOUGHT = "I should measure it."


@dataclass(frozen=True)
class Echo:
    sampled: str
    recorded: Message
    returned: Message
    lost: int
    then: tuple[Message, ...] = (result("t1.0"),)


def thinking(body: str) -> str:
    return f"<think>\n{THOUGHT}\n</think>\n\n{body}{STOP}"


def calling(*arguments: str, name: str = "bash") -> str:
    calls = [f'{{"name": "{name}", "arguments": {text}}}' for text in arguments]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in calls)


BASH = thinking(calling('{"description": "Size", "timeout": 5000.0, "command": "du -sh ."}'))
BASH_CALL = said("", THOUGHT, call("t1.0", description="Size", timeout=5000.0, command="du -sh ."))
EDIT = thinking(
    calling('{"file_path": "a", "old_string": "x", "new_string": "y  \\n"}', name="Edit")
)
EDIT_CALL = said(
    "", THOUGHT, call("t1.0", "Edit", file_path="a", old_string="x", new_string="y  \n")
)
TEXT = thinking("It is 148M.")
TEXT_SAID = said("It is 148M.", THOUGHT)
ASK = (user("And the tests?"),)

EXTENDED = {
    "Codex: verbatim": Echo(BASH, BASH_CALL, BASH_CALL, 0),
    "Claude Code: keys in the order of the schema, 5000": Echo(
        BASH,
        BASH_CALL,
        said("", THOUGHT, call("t1.0", command="du -sh .", timeout=5000, description="Size")),
        27,
    ),
    "Claude Code: a default added, first": Echo(
        EDIT,
        EDIT_CALL,
        said(
            "",
            THOUGHT,
            call(
                "t1.0",
                "Edit",
                replace_all=False,
                file_path="a",
                old_string="x",
                new_string="y  \n",
            ),
        ),
        25,
    ),
    "Claude Code: blanks at line ends stripped": Echo(
        EDIT,
        EDIT_CALL,
        said("", THOUGHT, call("t1.0", "Edit", file_path="a", old_string="x", new_string="y\n")),
        6,
    ),
    "Claude Code: text made a boolean": Echo(
        thinking(calling('{"replace_all": "true"}', name="Edit")),
        said("", THOUGHT, call("t1.0", "Edit", replace_all="true")),
        said("", THOUGHT, call("t1.0", "Edit", replace_all=True)),
        5,
    ),
    "Claude Code, pi: a blank text before the call dropped": Echo(
        thinking(f"\n \n{calling('{}')}"),
        said(" ", THOUGHT, call("t1.0")),
        said("", THOUGHT, call("t1.0")),
        17,
    ),
    "opencode: reserialised, an escape resolved": Echo(
        thinking(calling('{"command":"du caf\\u00e9"}')),
        said("", THOUGHT, call("t1.0", command="du café")),
        said("", THOUGHT, call("t1.0", command="du café")),
        11,
    ),
    "opencode: an unknown tool renamed, its arguments replaced": Echo(
        BASH,
        BASH_CALL,
        said("", THOUGHT, call("t1.0", "invalid", tool="bash", error="no such tool")),
        33,
    ),
    "pi: arguments repaired": Echo(
        BASH, BASH_CALL, said("", THOUGHT, call("t1.0", command="du -sh .")), 27
    ),
    "cline, Continue: arguments emptied": Echo(
        BASH, BASH_CALL, said("", THOUGHT, call("t1.0")), 28
    ),
    "Claude Code: arguments wrapped": Echo(
        BASH,
        BASH_CALL,
        said("", THOUGHT, call("t1.0", __unparsedToolInput={"raw": "{", "len": 1})),
        27,
    ),
    "Qwen Code: reasoning trimmed": Echo(
        f"<think>\n  {THOUGHT}  \n</think>\n\nIt is 148M.{STOP}",
        said("It is 148M.", f"  {THOUGHT}  "),
        TEXT_SAID,
        20,
        ASK,
    ),
    "Continue, openai-agents, langchain: reasoning dropped, a call": Echo(
        BASH, BASH_CALL, said("", "", *BASH_CALL["tool_calls"]), 48
    ),
    "aider, langchain: reasoning dropped, only text": Echo(
        TEXT, TEXT_SAID, said("It is 148M."), 18, ASK
    ),
    "aider: the last newline stripped": Echo(
        f"Done.\n{STOP}", said("Done.\n"), said("Done."), 2, ASK
    ),
    "pydantic-ai: reasoning pasted into the text": Echo(
        TEXT, TEXT_SAID, said(f"<think>\n{THOUGHT}\n</think>\n\nIt is 148M."), 18, ASK
    ),
    "ids dropped, reserialised": Echo(
        BASH,
        BASH_CALL,
        said("", THOUGHT, call("", command="du -sh .", timeout=5000, description="Size")),
        27,
        (result("x"),),
    ),
    "ids replaced by the client's own": Echo(
        BASH, BASH_CALL, said("", "", {**BASH_CALL["tool_calls"][0], "id": "own"}), 48
    ),
    "two calls, both reordered": Echo(
        thinking(calling('{"a": 1, "b": 2}', '{"c": 3, "d": 4}')),
        said("", THOUGHT, call("t1.0", a=1, b=2), call("t1.1", c=3, d=4)),
        said("", THOUGHT, call("t1.0", b=2, a=1), call("t1.1", d=4, c=3)),
        38,
        (result("t1.1"), result("t1.0")),
    ),
    "text and a call, the text rewritten": Echo(
        thinking(f"Let me look.\n{calling('{}')}"),
        said("Let me look.", THOUGHT, call("t1.0")),
        said("Looking...", THOUGHT, call("t1.0")),
        19,
    ),
    "an empty answer": Echo(STOP, said(""), said(""), 0, ASK),
}
"""Taken for the answer it was."""

FOREIGN = {
    "smolagents: the call flattened into text": Echo(
        BASH, BASH_CALL, said("Calling tools: bash du -sh ."), 48, (user("Observation: 148M"),)
    ),
    "another text": Echo(TEXT, TEXT_SAID, said("It is 149M."), 18, ASK),
    "the same text with another thought": Echo(
        TEXT, TEXT_SAID, said("It is 148M.", "I guess."), 18, ASK
    ),
    "the second of two calls alone": Echo(
        thinking(calling('{"a": 1}', '{"b": 2}')),
        said("", THOUGHT, call("t1.0", a=1), call("t1.1", b=2)),
        said("", THOUGHT, call("t1.1", b=2)),
        26,
        (result("t1.1"),),
    ),
    "other calls without ids": Echo(
        BASH, BASH_CALL, said("", THOUGHT, call("", command="ls")), 27, (result("x"),)
    ),
}
"""Another message: context, and the answer stays a leaf."""
