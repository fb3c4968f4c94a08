"""What a renderer is made of: a tokenizer folder, perhaps a template file, and their fingerprint.

Invariant: two renderers with one fingerprint print the same ids for the same messages.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from streams.adapters.gateway.rendering.template import RETENTION
from streams.errors import BadSetting


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder; nothing is fetched."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise BadSetting(f"{folder} holds no tokenizer that can be loaded: {first}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not tokenizer.is_fast:
        raise BadSetting(f"{folder} has no tokenizer.json: a fast tokenizer is needed")
    return tokenizer


def generation_ends(folder: Path) -> list[int]:
    """The ids at which the model's own settings end an answer; none without such settings."""
    try:
        settings = msgspec.json.decode((folder / "generation_config.json").read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise BadSetting(f"{folder}/generation_config.json cannot be read: {error}") from error
    ends = settings.get("eos_token_id") if isinstance(settings, dict) else None
    return [token for token in (ends if isinstance(ends, list) else [ends]) if type(token) is int]


def template_text(tokenizer: PreTrainedTokenizerBase, given: Path | None) -> str | None:
    """The template to use: the given file, else the tokenizer's own; None if it has none."""
    if given is not None:
        try:
            return given.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(f"the chat template {given} cannot be read: {error}") from error
    own = tokenizer.chat_template
    # Some tokenizers have several under names; the one for tools prints plain chats too.
    if isinstance(own, dict):
        own = own.get("tool_use") or own.get("default")
    return own if isinstance(own, str) else None


def fingerprint_of(
    folder: Path, backend: Tokenizer, template: str | None, options: Mapping[str, Any]
) -> str:
    """A short digest of all that rendered ids depend on beside the messages and tools."""
    file = folder / "tokenizer.json"
    digest = blake2b(digest_size=8)
    vocabulary = file.read_bytes() if file.is_file() else backend.to_str().encode()
    for part in (
        vocabulary,
        (template or "").encode(),
        RETENTION.encode(),
        msgspec.json.encode(options, order="deterministic"),
    ):
        # Lengths between them, so that no two lists of parts read the same.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
