"""`read_experts`: what keys and tensors of a GGUF file say of its experts, checked against each
other.

A layer with experts has, the slowest dimension first, with E experts of I numbers and rows of D:
`ffn_gate_inp` [E, D], `ffn_gate_exps` and `ffn_up_exps` [E, I, D] or both as `ffn_gate_up_exps`
[E, 2 I, D], and `ffn_down_exps` [E, D, I]. Files until April 2024 have `ffn_gate.3` [I, D] and so
on for each expert. Source: llama.cpp, src/llama-model.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.container import GgufTensor
from quire.gguf.keys import Keys

MAX_EXPERTS = 1024
"""Maximum number of experts of a layer."""
_MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """The sizes of a file's experts. Invariant: the tensors of the layers have them."""

    count: int
    """E."""
    top_k: int
    """Number of experts per token."""
    width: int
    """I, the width of an expert."""
    shared_width: int
    """Width of the shared expert; 0 without one."""
    is_sparse: tuple[bool, ...]
    """For each layer, whether it has experts."""

    def in_all_layers(self, keys: Keys) -> ExpertFacts:
        """Returns itself. Raises UnsupportedModelError if a layer has no experts."""
        if not all(self.is_sparse):
            raise UnsupportedModelError(
                f"{keys.path}: layer {self.is_sparse.index(False)} has no experts; models of "
                f"architecture {keys.architecture!r:.60} have them in every layer"
            )
        return self

    def num_shared(self, keys: Keys) -> int:
        """Width of the shared expert, in widths of one expert. Raises UnsupportedModelError if that
        is not a whole number."""
        if self.shared_width % self.width:
            raise UnsupportedModelError(
                f"{keys.path}: the shared expert has {self.shared_width} numbers; it must "
                f"have a multiple of the {self.width} of the others"
            )
        return self.shared_width // self.width

    @property
    def layer_types(self) -> list[str]:
        """`mlp_layer_types` of config.json."""
        return ["sparse" if sparse else "dense" for sparse in self.is_sparse]


def num_layers(keys: Keys) -> int:
    """Number of layers, without the layers after them that predict further tokens."""
    count = keys.whole("{arch}.block_count") - keys.whole("{arch}.nextn_predict_layers", 0)
    if not 1 <= count <= _MAX_LAYERS:
        raise keys.error("{arch}.block_count", f"a number of layers from 1 to {_MAX_LAYERS}")
    return count


def read_experts(keys: Keys, *, gated: bool = True, row_size: int | None = None) -> ExpertFacts:
    """Raises CheckpointError for numbers that cannot be, tensors that are missing, and shapes
    that differ from what the keys say. `row_size`: the numbers in a row that an expert reads, if
    they are not those of the model."""
    count = keys.whole("{arch}.expert_count")
    if not 1 <= count <= MAX_EXPERTS:
        raise keys.error("{arch}.expert_count", f"a number of experts from 1 to {MAX_EXPERTS}")
    top_k = keys.whole("{arch}.expert_used_count")
    if not 1 <= top_k <= count:
        raise keys.error("{arch}.expert_used_count", f"from 1 to the {count} experts")
    tensors = _by_name(keys)
    layers = range(num_layers(keys))
    is_sparse = tuple(f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in layers)
    if not any(is_sparse):
        raise CheckpointError(
            f"{keys.path}: {keys.architecture}.expert_count is {count}, and no layer has a router "
            "(blk.0.ffn_gate_inp.weight)"
        )
    first = is_sparse.index(True)
    size = keys.whole("{arch}.embedding_length")
    width = _width(keys, tensors, first)
    checker = _Checker(keys, tensors, count, width, size, row_size or size, gated)
    for layer in layers:
        if is_sparse[layer]:
            checker.check(layer)
    shared = tensors.get(f"blk.{first}.ffn_down_shexp.weight")
    return ExpertFacts(count, top_k, checker.width, shared.shape[-1] if shared else 0, is_sparse)


def _by_name(keys: Keys) -> Mapping[str, GgufTensor]:
    return {name: tensor for header in keys.headers for name, tensor in header.tensors.items()}


def _width(keys: Keys, tensors: Mapping[str, GgufTensor], layer: int) -> int:
    """I, from the key, or from the tensor without the key."""
    if keys.value("{arch}.expert_feed_forward_length") is not None:
        width = keys.whole("{arch}.expert_feed_forward_length")
        if width > 0:
            return width
    for name in ("ffn_down_exps", "ffn_down.0"):
        found = tensors.get(f"blk.{layer}.{name}.weight")
        if found is not None:
            return found.shape[-1]
    return keys.whole("{arch}.feed_forward_length")


@dataclass(frozen=True, slots=True)
class _Checker:
    keys: Keys
    tensors: Mapping[str, GgufTensor]
    count: int
    width: int
    size: int
    """D, the numbers in a row of the model."""
    row_size: int
    """Those in a row that an expert reads."""
    gated: bool

    def check(self, layer: int) -> None:
        """The tensors of the experts of a layer."""
        inner, outer = (self.width, self.row_size), (self.row_size, self.width)
        self._has(layer, "ffn_gate_inp", (self.count, self.size))
        if f"blk.{layer}.ffn_down.0.weight" in self.tensors:
            for expert in range(self.count):
                self._has(layer, f"ffn_gate.{expert}", inner)
                self._has(layer, f"ffn_up.{expert}", inner)
                self._has(layer, f"ffn_down.{expert}", outer)
            return
        if f"blk.{layer}.ffn_gate_up_exps.weight" in self.tensors:
            self._has(layer, "ffn_gate_up_exps", (self.count, 2 * self.width, self.row_size))
        else:
            if self.gated:
                self._has(layer, "ffn_gate_exps", (self.count, *inner))
            self._has(layer, "ffn_up_exps", (self.count, *inner))
        self._has(layer, "ffn_down_exps", (self.count, *outer))

    def _has(self, layer: int, part: str, shape: tuple[int, ...]) -> None:
        name = f"blk.{layer}.{part}.weight"
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"{self.keys.path}: tensor {name!r} of shape {list(shape)} is missing; the file "
                "is incomplete, convert the model again"
            )
        if tensor.shape != shape:
            raise CheckpointError(
                f"{self.keys.path}: tensor {name!r} has shape {list(tensor.shape)}; by the keys, "
                f"{self.count} experts of {self.width} numbers and rows of {shape[-1]}, it is "
                f"{list(shape)}"
            )
