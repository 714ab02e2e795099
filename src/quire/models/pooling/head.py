"""`PoolingHead`: what a program computes of the last hidden states instead of logits.

It is stored as a key of config.json, like the choice of transformers, so that planning, the worker
and the names of stored K/V use the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quire.config.pooling import PoolingType
from quire.program.ops import Activation

MARK = "quire_pooling"


class DenseLayer(msgspec.Struct, frozen=True):
    """A linear layer whose weights lie in a folder of their own, as sentence-transformers has it,
    or in a file `FOLDER.pt`, as BGE-M3 has it."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation | None


class PoolingHead(msgspec.Struct, frozen=True):
    """The part of a pooling model that follows its hidden states."""

    pooling_type: PoolingType
    dense: tuple[DenseLayer, ...] = ()
    num_labels: int = 0
    """Classes; 0: the result is the hidden state itself."""
    has_inner_layer: bool = False
    """Whether a linear layer and ReLU stand before the classes, as in Qwen2's reward models."""
    has_bias: bool = False
    """Whether the classes of a decoder have a bias, as in transformers' classes for tokens."""
    by_token: bool = False
    """Whether each token is classified by itself."""
    token_rows: tuple[int, ...] = ()
    """Rows of the language model's head that are the classes: one, or two whose difference is."""


def marked(hf_config: Mapping[str, Any], head: PoolingHead) -> dict[str, Any]:
    """config.json of a model that pools."""
    return {**hf_config, MARK: msgspec.to_builtins(head)}


def pooling_head(hf_config: Mapping[str, Any]) -> PoolingHead | None:
    """The head that `marked` stored; None: the model generates."""
    found = hf_config.get(MARK)
    return None if found is None else msgspec.convert(found, PoolingHead)
