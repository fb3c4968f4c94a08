"""Logprobs as a trainer computes them: one pass over all tokens, without a cache.

Nothing of the engine is used: the model is loaded again, attention is the plain kind, and the
temperature and the softmax are PyTorch's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GgufConfig

Weights = Mapping[str, Any]


class Rescorer:
    """A model that scores tokens with any weights of its shape."""

    def __init__(self, path: Path) -> None:
        options: dict[str, Any] = {}
        if path.is_file():
            options = {
                "gguf_file": path.name,
                "quantization_config": GgufConfig(dequantize=True),
            }
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent if path.is_file() else path,
            dtype=torch.float32,
            attn_implementation="eager",
            **options,
        )
        self.own: Weights = {
            name: tensor.clone() for name, tensor in self.model.state_dict().items()
        }

    def disturbed(self, seed: int, share: float = 0.05) -> Weights:
        """The weights with noise, by a share of how far each tensor's values lie apart."""
        chance = torch.Generator().manual_seed(seed)
        noisy: dict[str, Any] = {}
        tied: dict[int, Any] = {}
        for name, tensor in self.model.state_dict().items():
            own = self.own[name]
            noise = torch.randn(own.shape, generator=chance) * own.std() * share
            noisy[name] = tied.setdefault(tensor.data_ptr(), own + noise)
        return noisy

    def logprobs(self, weights: Weights, tokens: Sequence[int], temperature: float) -> list[float]:
        """Of each token given those before it; 0 for the first."""
        self.model.load_state_dict(weights)
        with torch.no_grad():
            scores = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        whole = torch.log_softmax(scores / temperature, dim=-1)
        chosen = whole[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
        return [0.0, *chosen.tolist()]
