"""The `renderers` package without the OpenAI client, which it imports and nobody here calls.

That client is a fifth of the work of a start, and a gateway starts when another has died.
The package names it in annotations of functions that ask an engine; those are not used here.

Invariant: whoever imports `openai`, before or after, gets the real one.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType


@contextlib.contextmanager
def stood_in(name: str, attribute: str) -> Iterator[None]:
    """A module that has only this attribute, unless the real one is there already."""
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)
    setattr(stand_in, attribute, object)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


with stood_in("openai", "AsyncOpenAI"):
    from renderers import config_from_name, create_renderer  # type: ignore[import-untyped]

__all__ = ["config_from_name", "create_renderer"]
