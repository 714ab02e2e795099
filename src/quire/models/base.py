"""The interface of a model family: `ModelFamily`, `ModelFacts`, and `NameMap` for tensor names.

`weights/binding.py` maps a checkpoint's names by `NameMap`; `planning` reads `ModelFacts`. Knows no
tensor's contents and no device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.models.config_reader import ConfigReader
from quire.program import Activation, Program

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""Names in config.json to the program's activations."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's sizes from config.json, without building its program. All are checked."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    """The longest context that the positions allow, with rope scaling, computed as in vLLM."""
    sliding_window: int | None
    """The window, if every layer has one; None if a layer sees all positions."""
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool


@dataclass(frozen=True, slots=True)
class NameMap:
    """Maps the tensor names of a family's checkpoints to the canonical ones in `Param.parts`.

    The base model is saved under several prefixes (`transformer.h.0...`, or bare `h.0...`);
    the canonical name has `prefix`. Tensors at the top (`lm_head.weight`) have none.
    """

    prefix: str
    """Canonical prefix of the base model, with its dot: `model.`"""
    other_prefixes: tuple[str, ...]
    """Further prefixes, the longest first; the empty one is understood."""
    ignorable: tuple[str, ...]
    """Regular expressions of canonical names that are not loaded (buffers, tied heads)."""
    top_level: tuple[str, ...] = ("lm_head.",)

    def canonical(self, name: str) -> str | None:
        """The canonical name, which the program may lack; None for an ignored tensor."""
        bare = name
        for prefix in (self.prefix, *self.other_prefixes):
            if name.startswith(prefix):
                bare = name[len(prefix) :]
                break
        full = bare if bare.startswith(self.top_level) else f"{self.prefix}{bare}"
        if any(re.fullmatch(pattern, full) for pattern in self.ignorable):
            return None
        return full


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One model family: four functions of config.json, called through `models.registry`.

    Each raises CheckpointError for a missing or impossible key, and UnsupportedModelError
    for a feature that is not implemented.
    """

    name: str
    architectures: tuple[str, ...]
    build: Callable[[ConfigReader], Program]
    facts: Callable[[ConfigReader], ModelFacts]
    names: Callable[[ConfigReader], NameMap]


HfConfig = Mapping[str, Any]
