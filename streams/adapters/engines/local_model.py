"""A causal language model on this machine's processors, read some tokens at a time.

PyTorch is imported when a model is loaded, not before: it comes with the extra `train` alone.
Weights are kept in float32, whatever the file has, so that the scores of a token read after a
cache are those of one pass over all tokens, but for rounding. One processor is left to the event
loop: where all of them compute in step, each step waits for the one that was called away.

Invariant: what `read` returns depends on the weights, the tokens and what the cache was made of;
weights that do not fit change nothing.
"""

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streams.adapters.engines.local_sampling import Scores
from streams.errors import BadSetting

_EXTRA = "PyTorch is not installed: install `turnstream[train]`, some gigabytes"
_NAMES_SHOWN = 3

Weights = Mapping[str, Any]
"""Tensors by their names, as `state_dict()` of the same model gives them."""
Cache = Any
"""What the model keeps of the tokens it has read."""


class LocalModel:
    """One model in memory."""

    def __init__(self, path: Path) -> None:
        """Load a folder as `save_pretrained` leaves it, or a GGUF file; nothing is fetched.

        Raises:
            BadSetting: PyTorch is missing, or there is no such model.
        """
        self._model = _load(path)
        self._torch = torch = importlib.import_module("torch")
        torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 2) - 1)))
        # Scores of the last token are all that is needed; most models can leave the others out.
        asked = inspect.signature(self._model.forward).parameters
        self._asked = {"logits_to_keep": 1} if "logits_to_keep" in asked else {}
        self.vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        self.window: int | None = getattr(self._model.config, "max_position_embeddings", None)
        self.ends = _ends(self._model)

    def read(self, ids: Sequence[int], cache: Cache | None) -> tuple[Scores, Cache]:
        """The scores of what follows these tokens, and the cache with them in it."""
        with self._torch.inference_mode():
            out = self._model(
                input_ids=self._torch.tensor([list(ids)]),
                past_key_values=cache,
                use_cache=True,
                **self._asked,
            )
            scores: Scores = out.logits[0, -1].numpy().astype(np.float32, copy=False)
        return scores, out.past_key_values

    def misfit(self, weights: Weights) -> str | None:
        """Why these weights are not this model's, if so; tied ones need to be there once."""
        own = self._model.state_dict()
        given = {own[name].data_ptr() for name in weights if name in own}
        faults = {
            "unknown": [name for name in weights if name not in own],
            "missing": [
                name
                for name, tensor in own.items()
                if name not in weights and tensor.data_ptr() not in given
            ],
            "of another shape": [
                name
                for name, tensor in weights.items()
                if name in own and tuple(tensor.shape) != tuple(own[name].shape)
            ],
        }
        return "; ".join(_named(what, names) for what, names in faults.items() if names) or None

    def replace(self, weights: Weights) -> None:
        """Copy them in; caches made before are of other weights from now on."""
        own = self._model.state_dict()
        with self._torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)


def weights_at(path: Path) -> Weights:
    """The weights of a model's folder or file.

    Raises:
        BadSetting: as a model's.
    """
    weights: Weights = _load(path).state_dict()
    return weights


def _load(path: Path) -> Any:
    if not path.exists():
        raise BadSetting(f"{path}: there is no such folder or file")
    torch = _torch()
    transformers = importlib.import_module("transformers")
    options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    folder = path
    if path.is_file():
        folder = path.parent
        options["gguf_file"] = path.name
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, **options
        )
    except Exception as error:
        # Whatever a library does not understand of a file, it says in its own way.
        first = str(error).strip().partition("\n")[0]
        raise BadSetting(f"{path}: no causal language model can be loaded: {first}") from error
    if told["missing_keys"]:
        raise BadSetting(f"{path}: {_named('missing', sorted(told['missing_keys']))}")
    return model


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        first = str(error).partition("\n")[0]
        raise BadSetting(_EXTRA if error.name == "torch" else f"PyTorch: {first}") from error


def _ends(model: Any) -> frozenset[int]:
    """The ids at which the model's own settings end an answer."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def _named(what: str, names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"weights {what}: {shown}"
