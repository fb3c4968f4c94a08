"""Chat templates of other models than Qwen3, as published: unpacked from a wheel, or run.

The Jinja files come out of `trl`, which carries those of many models, by range and digest. Mistral
has no file: its prompts are made by `mistral-common`, which is installed. `MISTRAL` is a template
that prints the same; the test holds it against the package.
"""

import functools
from collections.abc import Sequence
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from tests.adapters.engines.published import Wheel
from tests.drift.qwen3 import Message

MISTRAL_MARKERS = (
    "</s> <s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] "
    "[TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
)
HARMONY_MARKERS = (
    "<|endoftext|> <|start|> <|message|> <|end|> <|channel|> <|call|> <|return|> <|constrain|>"
)
MISTRAL = """\
<s>
{%- set seen = namespace(system='', asked=-1) %}
{%- for m in messages %}
  {%- if m.role == 'system' %}{% set seen.system = m.content + '\\n\\n' %}{% endif %}
  {%- if m.role == 'user' %}{% set seen.asked = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {%- set last = loop.index0 == seen.asked %}
    {%- if last and tools %}
      {{- '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}
    {%- endif %}
    {{- '[INST]' ~ (seen.system if last else '') ~ m.content ~ '[/INST]' }}
  {%- elif m.role == 'tool' %}
    {{- '[TOOL_RESULTS]{"content": ' ~ m.content | tojson }}
    {{- ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
  {%- elif m.tool_calls %}
    {{- '[TOOL_CALLS][' }}
    {%- for c in m.tool_calls %}
      {{- '{"name": "' ~ c.function.name ~ '", "arguments": ' ~ c.function.arguments | tojson }}
      {{- ', "id": "' ~ c.id ~ '"}' ~ (', ' if not loop.last else '') }}
    {%- endfor %}
    {{- ']</s>' }}
  {%- elif m.role == 'assistant' %}
    {{- m.content ~ '</s>' }}
  {%- endif %}
{%- endfor %}"""


@functools.cache
def template(name: str) -> str:
    """A template of a model, by its name in trl."""
    return Wheel("trl").text(f"trl/chat_templates/{name}.jinja")


@functools.cache
def _mistral() -> Any:
    return MistralTokenizer.v3(is_tekken=True)


def by_mistral(messages: Sequence[Message], tools: Sequence[Message]) -> tuple[list[int], str]:
    """A prompt as Mistral's own package makes it, as ids and as text."""
    asked: Any = ChatCompletionRequest.from_openai(
        messages=list[Any](messages), tools=list[Any](tools)
    )
    made = _mistral().encode_chat_completion(asked)
    return list(made.tokens), str(made.text)
