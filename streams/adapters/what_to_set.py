"""What to set for each client, so that its model calls go through the gateway.

    OpenAI SDK, and what is built on it     OPENAI_BASE_URL, OPENAI_API_KEY
    Anthropic SDK                           ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY
    Claude Code                             those, the model's name and its window
    Codex                                   a provider of its own, as options of its command

Claude Code and Codex shorten a conversation by the window that they believe in, and for a model
they do not know that is far too large; so they are told.

Invariant: the tests that run the real clients set exactly this.
"""

import json
import shlex
from collections.abc import Mapping

PROVIDER = "turnstream"
COMPACT_SHARE = 0.8
"""Of the window: where Codex shortens a conversation; one answer has to fit behind it."""


def for_sdks(url: str, key: str) -> dict[str, str]:
    """Variables for the vendors' SDKs; `url` is the gateway's, without a path of an API."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
    }


def for_claude_code(model: str, window_tokens: int, answer_tokens: int) -> dict[str, str]:
    """Variables beside those for SDKs."""
    return {
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer_tokens),
        "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def for_codex(url: str, model: str, window_tokens: int) -> list[str]:
    """Options behind `codex exec`; the key is in OPENAI_API_KEY."""
    provider = {
        "name": PROVIDER,
        "base_url": f"{url}/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    chosen: Mapping[str, str] = {
        "model": json.dumps(model),
        "model_provider": json.dumps(PROVIDER),
        f"model_providers.{PROVIDER}": f"{{{table}}}",
        "model_context_window": str(window_tokens),
        "model_auto_compact_token_limit": str(int(window_tokens * COMPACT_SHARE)),
    }
    return [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]


def exported(variables: Mapping[str, str]) -> str:
    """Lines for a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
