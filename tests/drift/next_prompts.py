"""The table of next prompts that are not prompt + response, with the stock Qwen3 template.

The setting is always the same: a system message, a user who asks "How big is the repo?", one
`bash` tool. Turn 1 samples a response; the server parses it (`qwen3.parse`); the harness sends
the message back with what came after it; the template renders the whole history for turn 2.

Each row says what happens, where the new prompt leaves turn 1's sequence, which tokens stand
there before and after, and what each profile does with turn 2, in the line `sessions` draws.

Messages decide where a turn hangs, tokens decide what it does there. So a comment on each row
says whether its difference is in a message or only in tokens.
"""

from dataclasses import dataclass

from tests.drift.qwen3 import STOP, Message


def tool(name: str, description: str, required: str, **types: str) -> Message:
    parameters = {
        "type": "object",
        "properties": {field: {"type": kind} for field, kind in types.items()},
        "required": [required],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


BASH = tool("bash", "Run a shell command.", "command", command="string", timeout="number")
READ = tool("read", "Read a file.", "path", path="string")
OPENING: list[Message] = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": "How big is the repo?"},
]
RESULT: Message = {"role": "tool", "content": "148M\t."}
NEXT_QUESTION: Message = {"role": "user", "content": "And the tests?"}

THOUGHT = "<think>\nI should measure it.\n</think>\n\n"
SHORT = "<think>\nLook.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "du -sh ."}}\n</tool_call>'
ANSWER = f"It is big.{STOP}"
ANSWER_LEN = 5


@dataclass(frozen=True, kw_only=True)
class Row:
    sampled: str
    then: Message
    unsent: str | None = None
    """A field of the recorded message that the harness leaves out when it sends it back."""
    restored: bool = False
    """The adapter recognises that message and records it as it was, not as it came back."""
    tools: tuple[Message, ...] = (BASH,)
    tools_later: tuple[Message, ...] = (BASH,)
    thinking: bool = True
    sizes: tuple[int, int, int]
    """Tokens of the first prompt, sampled from it, and of the next prompt."""
    breaks: str
    old: list[str]
    new: list[str]
    seed: str
    slime: str
    lossless: str

    def outcome(self, profile: str) -> str:
        return {"seed": self.seed, "slime": self.slime, "lossless": self.lossless}[profile]


ROWS = {
    # Nothing differs.
    "control: the canonical call extends": Row(
        sampled=f"{THOUGHT}{CALL}{STOP}",
        then=RESULT,
        sizes=(165, 31, 214),
        breaks="holds",
        old=[],
        new=["\n", "<|im_start|>", "user"],
        seed="t2 extend: given [t1] given [t2]; 36 of 36 trained",
        slime="t2 extend: given [t1] given [t2]; 36 of 36 trained",
        lossless="t2 extend: given [t1] given [t2]; 36 of 36 trained",
    ),
    # Only in tokens: parsed, the call is the same.
    "1: the model wrote compact JSON": Row(
        sampled=f"{THOUGHT}<tool_call>\n"
        f'{{"name":"bash","arguments":{{"command":"du -sh ."}}}}\n</tool_call>{STOP}',
        then=RESULT,
        sizes=(165, 27, 214),
        breaks="response 13",
        old=['":"'],
        new=['":', ' "'],
        seed="t2 realign: given [t2]; 5 of 32 trained, 27 realigned",
        slime="t2 realign: given [t2]; 5 of 32 trained, 27 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 32 of 32 trained",
    ),
    # Only in tokens: the parser reads the two keys by name.
    "2: the model wrote arguments before name": Row(
        sampled=f"{THOUGHT}<tool_call>\n"
        f'{{"arguments": {{"command": "du -sh ."}}, "name": "bash"}}\n</tool_call>{STOP}',
        then=RESULT,
        sizes=(165, 31, 214),
        breaks="response 12",
        old=["arguments"],
        new=["name"],
        seed="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        slime="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Only in tokens: the parser loads the escape, and what is recorded is what it dumped.
    "3: the model escaped a letter": Row(
        sampled=f"{SHORT}<tool_call>\n"
        f'{{"name": "bash", "arguments": {{"command": "du caf\\u00e9"}}}}\n</tool_call>{STOP}',
        then=RESULT,
        sizes=(165, 31, 209),
        breaks="response 22",
        old=[" caf", "\\u"],
        new=[" café"],
        seed="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        slime="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Only in tokens: the parser loads the number, and what is recorded is what it dumped.
    "4: the model wrote 1e3": Row(
        sampled=f'{SHORT}<tool_call>\n{{"name": "bash", "arguments": '
        f'{{"command": "du", "timeout": 1e3}}}}\n</tool_call>{STOP}',
        then=RESULT,
        sizes=(165, 33, 219),
        breaks="response 28",
        old=["e", "3"],
        new=["0", "0", "0", ".", "0"],
        seed="t2 realign: given [t2]; 5 of 38 trained, 33 realigned",
        slime="t2 realign: given [t2]; 5 of 38 trained, 33 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 38 of 38 trained",
    ),
    # Only in tokens: blanks around the JSON of a call reach no message.
    "5: no newline inside the tool call": Row(
        sampled=f"{SHORT}<tool_call>"
        f'{{"name": "bash", "arguments": {{"command": "du -sh ."}}}}</tool_call>{STOP}',
        then=RESULT,
        sizes=(165, 27, 211),
        breaks="response 7",
        old=['{"'],
        new=["\n"],
        seed="t2 realign: given [t2]; 5 of 32 trained, 27 realigned",
        slime="t2 realign: given [t2]; 5 of 32 trained, 27 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 32 of 32 trained",
    ),
    # Only in tokens: the message keeps its newline on both sides, the template adds another.
    "6: canonical text before a canonical call": Row(
        sampled=f"{SHORT}Let me look.\n{CALL}{STOP}",
        then=RESULT,
        sizes=(165, 32, 215),
        breaks="response 9",
        old=[".\n"],
        new=[".\n\n"],
        seed="t2 realign: given [t2]; 5 of 37 trained, 32 realigned",
        slime="t2 realign: given [t2]; 5 of 37 trained, 32 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 37 of 37 trained",
    ),
    # In the message: it came back another, so turn 2 hangs beside turn 1, below no generated
    # turn. A profile that merges takes the only short leaf there for the one that was rewritten.
    "7: the harness does not send the reasoning back": Row(
        sampled=f"{THOUGHT}{CALL}{STOP}",
        then=RESULT,
        unsent="reasoning_content",
        sizes=(165, 31, 205),
        breaks="response 0",
        old=["<think>"],
        new=["<tool_call>"],
        seed="t2 root: given [t2]; 5 of 36 trained, 31 merged",
        slime="t2 root: given [t2]; 5 of 36 trained, 31 merged",
        lossless="t2 root: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Only in tokens: the same request, but the recorded message stands in the event.
    "7, restored: the adapter records the message as it was": Row(
        sampled=f"{THOUGHT}{CALL}{STOP}",
        then=RESULT,
        unsent="reasoning_content",
        restored=True,
        sizes=(165, 31, 205),
        breaks="response 0",
        old=["<think>"],
        new=["<tool_call>"],
        seed="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        slime="t2 realign: given [t2]; 5 of 36 trained, 31 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Only in tokens: the harness sends the reasoning, the template drops it before a new question.
    "8: a new user message arrives": Row(
        sampled=f"{THOUGHT}About 148M.{STOP}",
        then=NEXT_QUESTION,
        sizes=(165, 17, 186),
        breaks="response 0",
        old=["<think>", "\n", "I"],
        new=["About"],
        seed="t2 realign: given [t2]; 5 of 22 trained, 17 realigned",
        slime="t2 realign: given [t2]; 5 of 22 trained, 17 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 22 of 22 trained",
    ),
    # Only in tokens, and in the prompt: no profile realigns over what was not sampled.
    "9: thinking is switched off": Row(
        sampled=f"{CALL}{STOP}",
        then=RESULT,
        thinking=False,
        sizes=(169, 22, 209),
        breaks="prompt 165 of 169",
        old=["<think>", "\n\n", "</think>", "\n\n"],
        new=["<tool_call>"],
        seed="t2 fork: given [t1] / given [t2]; 27 of 27 trained",
        slime="t2 fork: given [t1] / given [t2]; 27 of 27 trained",
        lossless="t2 fork: given [t1] / given [t2]; 27 of 27 trained",
    ),
    # Only in tokens: the empty reasoning is in both messages, the template leaves it out.
    "10: the model sampled an empty think block": Row(
        sampled=f"<think>\n\n</think>\n\n{CALL}{STOP}",
        then=RESULT,
        sizes=(165, 26, 205),
        breaks="response 0",
        old=["<think>", "\n\n", "</think>", "\n\n", "<tool_call>"],
        new=["<tool_call>"],
        seed="t2 realign: given [t2]; 5 of 31 trained, 26 realigned",
        slime="t2 realign: given [t2]; 5 of 31 trained, 26 realigned",
        lossless="t2 fork: given [t1] / given [t2]; 31 of 31 trained",
    ),
    # Only in tokens, and in the prompt: the tool list stands in it and in no message.
    "11: a tool is added": Row(
        sampled=f"{THOUGHT}{CALL}{STOP}",
        then=RESULT,
        tools_later=(BASH, READ),
        sizes=(165, 31, 267),
        breaks="prompt 107 of 165",
        old=["</", "tools"],
        new=['{"', "type"],
        seed="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
        slime="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
        lossless="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Only in tokens, and in the prompt, as above.
    "11: two tools swap places": Row(
        sampled=f"{THOUGHT}{CALL}{STOP}",
        then=RESULT,
        tools=(BASH, READ),
        tools_later=(READ, BASH),
        sizes=(218, 31, 267),
        breaks="prompt 57 of 218",
        old=["bash"],
        new=["read"],
        seed="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
        slime="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
        lossless="t2 fork: given [t1] / given [t2]; 36 of 36 trained",
    ),
    # Nothing differs: the template supplies the stop token, given and therefore untrained.
    "18: cut by length, no stop token": Row(
        sampled="The repo is about",
        then=NEXT_QUESTION,
        sizes=(165, 4, 183),
        breaks="holds",
        old=[],
        new=[STOP, "\n", "<|im_start|>"],
        seed="t2 extend: given [t1] given [t2]; 9 of 9 trained",
        slime="t2 extend: given [t1] given [t2]; 9 of 9 trained",
        lossless="t2 extend: given [t1] given [t2]; 9 of 9 trained",
    ),
}
