"""Tokenizers small enough to write down, with the markers of other model families.

Each has one token for a byte and one for each marker, so that any text can be spelled and the
family's own reader in `renderers` reads it.
"""

import functools
import importlib
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from streams.adapters.gateway.answers.grammar import Grammar

MARKERS = {
    "Qwen35": "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> </tool_call> "
    "<tool_response> </tool_response> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>",
    "GLM45": "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> "
    "<tool_response> </tool_response>",
    "MiniMaxM2": "]~!b[ ]~b] [e~[ <think> </think> <minimax:tool_call> </minimax:tool_call>",
    "Llama3": "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> "
    "<|eot_id|> <|eom_id|> <|python_tag|>",
}


@functools.cache
def byte_tokenizer(markers: str) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in markers.split()])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        eos_token=markers.split(maxsplit=1)[0],
    )


def encode(family: str, text: str) -> list[int]:
    return list(byte_tokenizer(MARKERS[family]).encode(text, add_special_tokens=False))


@functools.cache
def grammar(family: str) -> Grammar:
    tokenizer = byte_tokenizer(MARKERS[family])
    backend = tokenizer.backend_tokenizer
    assert isinstance(backend, Tokenizer)
    return Grammar.of(backend, _reader(family, tokenizer))


def unknown(markers: str) -> Grammar:
    """A family that no reader knows."""
    tokenizer = byte_tokenizer(markers).backend_tokenizer
    assert isinstance(tokenizer, Tokenizer)
    end = tokenizer.token_to_id(markers.split(maxsplit=1)[0])
    assert end is not None
    return Grammar.of(tokenizer, None, stop_ids=[end])


def _reader(family: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    package = importlib.import_module("renderers")
    return package.create_renderer(tokenizer, getattr(package, f"{family}RendererConfig")())
