"""Whether a call's text can fit into the window at all, told before any of it is rendered.

    characters for each token of the window
    up to 5      rendered, then counted: most text has three to five
    up to 16     counted piece by piece
    more         counted until it is past the window, and the rest is estimated

Rendering makes several copies of a text, and a body may carry a hundred windows. What a template
may print is counted: the texts of messages, the names and arguments of calls, all of the tools.
Of a JSON value that is its strings, the names of its fields and its numbers.

Invariant: what is counted and refused would not have fitted.
"""

import functools
from collections.abc import Iterator

from tokenizers import Tokenizer

from streams.adapters.dialects.calls import Call
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.gateway.rendering.counting import is_long, least_ids, texts
from streams.adapters.gateway.rendering.encoding import countable


class Fitting:
    """Counts with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Nothing is counted yet."""
        self._encode = functools.partial(countable, tokenizer)

    def check(self, call: Call, window_tokens: int) -> None:
        """Refuse a call that is far beyond the window. It may take seconds: call it in a thread.

        Raises:
            ContextOverflow: with a count near the real one, for clients that cut by it.
        """
        size = sum(map(len, _printed(call)))
        if not is_long(size, window_tokens):
            return
        least = least_ids(self._encode, _printed(call), size, window_tokens)
        if least > window_tokens:
            raise ContextOverflow(least, window_tokens)


def _printed(call: Call) -> Iterator[str]:
    """The texts of a call that its prompt repeats."""
    for message in call.messages:
        yield from texts((message.get("content"), message.get("reasoning_content")))
        for function in (made["function"] for made in message.get("tool_calls") or ()):
            yield from texts((function["name"], function.get("arguments")))
    yield from texts(call.tools)
