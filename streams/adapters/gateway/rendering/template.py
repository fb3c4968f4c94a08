"""A chat template as text: messages and tools in, the rendered conversation out.

Reasoning is kept in the history: the switches by which known templates are told so are always
given; a template that has none of them takes no notice.

Invariant: what is rendered depends on the arguments alone, and a template that refuses raises
`RenderFailed` with its own words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering.encoding import Encoder, RenderFailed

RETENTION = "all"
KEEP_REASONING: dict[str, bool] = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}


class Template:
    """One template of one tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        encoder: Encoder,
        text: str,
        options: Mapping[str, Any],
        *,
        switches: Mapping[str, bool] = KEEP_REASONING,
    ) -> None:
        """`options` are the template's own, e.g. enable_thinking."""
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._text = text
        self._options = {**switches, **options}

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opened: bool = True
    ) -> str:
        """The conversation, guarded; `opened` with the header of the answer to come."""
        conversation = [printable(message) for message in self._encoder.guard(list(messages))]
        try:
            rendered = self._tokenizer.apply_chat_template(
                conversation,
                tools=list[Any](self._encoder.guard(list(tools))) or None,
                chat_template=self._text,
                add_generation_prompt=opened,
                tokenize=False,
                **self._options,
            )
        except (TemplateError, LookupError, TypeError, ValueError, AttributeError) as error:
            # Whatever goes wrong inside is this conversation's doing.
            raise RenderFailed(f"the chat template refuses the messages: {error}") from error
        assert isinstance(rendered, str), "one conversation was given, and no ids were asked for"
        return rendered


def printable(message: Message) -> Message:
    """A message as templates take it: content is always text."""
    return message if message.get("content") is not None else {**message, "content": ""}
