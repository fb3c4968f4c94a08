"""Numpy to torch; torch is imported when the first tensor is made.

Invariant: an array that may be written becomes the tensor's own memory; one that may not (a
sample's own, which others read too) is copied once.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Tensor = Any
"""A `torch.Tensor`; torch is not there to name it by."""


def tensor(array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor."""
    torch = importlib.import_module("torch")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """Every array as a tensor, under its name."""
    return {name: tensor(array) for name, array in arrays.items()}


def wide(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Token ids as torch indexes with them."""
    return ids.astype(np.int64)
