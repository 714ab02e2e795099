"""Finds the program and the sizes of a model of transformers from its module without weights.

The module runs once on torch's `meta` device, with a cache that records the shapes of keys and
values: the KV cache must hold what the model passes to this cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from quire.errors import QuireError, UnsupportedModelError, reason
from quire.models.base import HfConfig, ModelFacts
from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, MAX_POSITIONS, ConfigReader
from quire.models.transformers.modules import Found, build, cache_name, find, quiet
from quire.program import Attention, Module, ModuleSource, Param, Program, Tensor, Value

MAX_ROWS = 16
"""Number of rows that a module computes at a time, see `Module.piece`."""
_DEFAULT_POSITIONS = 2048
_EXPERTS = ("expert", "moe", "router")
"""Parts of class names of models with experts: their rows share products whose sizes depend on all
rows."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Facts about a model without its weights."""

    program: Program
    facts: ModelFacts


def outline(hf_config: HfConfig) -> Outline:
    """Return the outline. Raises UnsupportedModelError and CheckpointError, as `find` and `build`
    do."""
    return _outline(json.dumps(dict(hf_config), sort_keys=True))


@lru_cache(maxsize=2)
def _outline(text: str) -> Outline:
    hf_config = json.loads(text)
    found = find(hf_config)
    module = build(found)
    config = found.config.get_text_config()
    layers, width = _probe(found, module)
    rows = 1 if _has_experts(module) else MAX_ROWS
    source = ModuleSource(found.module.__name__, text)
    weights = tuple(_param(name, value) for name, value in module.named_parameters())
    op = Module(Value("logits", width), source, weights, layers, rows)
    program = Program(str(getattr(config, "model_type", "transformers")), (op,))
    program.check()
    return Outline(program, _facts(hf_config, config, layers, width, rows))


def _param(name: str, value: Any) -> Param:
    shape = tuple(value.shape)
    return Param(name, shape, (Tensor(name, shape),))


def _has_experts(module: Any) -> bool:
    names = {type(part).__name__.lower() for part in module.modules()}
    return any(word in name for name in names for word in _EXPERTS)


class _NotingLayer(CacheLayerMixin):  # type: ignore[misc]  # torch has no types here
    """Records the shapes of its inputs and stores nothing."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int, int]] = []
        """Number of heads (0 if keys and values differ), width of a key, width of a value."""

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Does nothing."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return the inputs."""
        _, heads, _, key_width = key_states.shape
        if value_states.shape[:3] != key_states.shape[:3]:
            heads = 0
        self.shapes.append((int(heads), int(key_width), int(value_states.shape[-1])))
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""
        return 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


def _probe(found: Found, module: Any) -> tuple[tuple[Attention, ...], int]:
    """Return the attention layers and the width of the logits. Raises UnsupportedModelError."""
    name = found.module.__name__
    cache = Cache(layer_class_to_replicate=_NotingLayer)
    for part in module.modules():
        if type(part).__name__.endswith("Experts"):  # which tokens they get, only numbers say
            part.forward = _same_shape
    ids = torch.zeros((1, MAX_ROWS), dtype=torch.long, device="meta")
    try:
        with quiet(), torch.inference_mode():
            out = module(input_ids=ids, use_cache=True, **{cache_name(module): cache})
        width = int(out.logits.shape[-1])
    except QuireError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} of transformers does not run here: it does not work with a cache of keys and "
            f"values alone, or asks for numbers while its shapes are found: {reason(error)}"
        ) from None
    return _layers(name, found.config.get_text_config(), cache), width


def _same_shape(hidden_states: Any, *_: Any, **__: Any) -> Any:
    return torch.empty_like(hidden_states)


def _layers(name: str, config: Any, cache: Any) -> tuple[Attention, ...]:
    counts = [len(layer.shapes) for layer in cache.layers]
    if not counts or set(counts) != {1}:
        raise UnsupportedModelError(
            f"{name} of transformers does not run here: each of its layers must give the cache "
            f"keys and values once; they do so {counts} times"
        )
    layers = []
    for index, layer in enumerate(cache.layers):
        heads, key_width, value_width = layer.shapes[0]
        width = max(key_width, value_width)
        if not (1 <= heads <= MAX_HEADS and 1 <= width <= MAX_HEAD_DIM):
            raise UnsupportedModelError(
                f"{name}: layer {index} has {heads} heads of {width} numbers; at most {MAX_HEADS} "
                f"of {MAX_HEAD_DIM} are possible"
            )
        num_heads = getattr(config, "num_attention_heads", None)
        if not isinstance(num_heads, int) or num_heads < 1 or num_heads % heads:
            num_heads = heads
        layers.append(_attention(index, num_heads, heads, width))
    return tuple(layers)


def _attention(index: int, num_heads: int, num_kv_heads: int, head_dim: int) -> Attention:
    """Return the op that describes what the KV cache must hold for a layer; the module computes
    attention."""

    def value(name: str, heads: int) -> Value:
        return Value(f"layers.{index}.{name}", heads * head_dim)

    return Attention(
        value("q", num_heads), value("k", num_kv_heads), value("v", num_kv_heads),
        value("attention", num_heads), index, num_heads, num_kv_heads, head_dim, head_dim**-0.5,
    )  # fmt: skip


def _facts(
    hf_config: HfConfig, config: Any, layers: tuple[Attention, ...], width: int, rows: int
) -> ModelFacts:
    reader = ConfigReader({
        "positions": getattr(config, "max_position_embeddings", None),
        "hidden_size": getattr(config, "hidden_size", None),
        "eos_token_id": hf_config.get("eos_token_id", getattr(config, "eos_token_id", None)),
    })  # fmt: skip
    positions = reader.size(
        "positions", MAX_POSITIONS, example=_DEFAULT_POSITIONS, default=_DEFAULT_POSITIONS
    )
    first = layers[0]
    return ModelFacts(
        num_layers=len(layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        hidden_size=reader.size("hidden_size", MAX_POSITIONS, example=4096, default=1),
        vocab_size=width,
        # Rows are computed in whole pieces, whose last position must be one too.
        max_model_len=max(1, positions // rows * rows),
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
    )
