"""Converts logits to torch tensors, for processors that use torch.

A processor gets tensors if a module of its class or base classes imports something from torch, like
processors written for vLLM. A tensor shares its memory with the array. This module does not import
torch: the processor's module has imported it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


def takes_tensors(cls: type[Any]) -> bool:
    """Whether one of its modules uses torch."""
    modules = (sys.modules.get(one.__module__) for one in cls.__mro__)
    return any(_is_of_torch(value) for module in modules for value in vars(module or cls).values())


def device_for(cls: type[Any]) -> Any:
    """The device argument for a processor's constructor."""
    return sys.modules["torch"].device("cpu") if takes_tensors(cls) else "cpu"


def tensor_of(logits: Logits) -> Any:
    """A tensor that shares the memory of the array."""
    return sys.modules["torch"].from_numpy(logits)


def array_of(logits: Any) -> Any:
    """The array of a tensor, sharing its memory; other values are returned unchanged."""
    return logits.detach().numpy() if _is_of_torch(logits) else logits


def _is_of_torch(value: object) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    if isinstance(value, type):
        home = value.__module__
    return isinstance(home, str) and home.partition(".")[0] == "torch"
