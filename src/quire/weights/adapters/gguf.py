"""`read_gguf_adapter`: a LoRA adapter as llama.cpp has it (`--lora`), by module of transformers.

Tensors are named `<tensor of the base>.lora_a` [rank, K] and `.lora_b` [N, rank]; of an embedding
`.lora_a` is [V, rank]. Of experts both have a first dimension more, which counts the experts. What
llama.cpp's conversion does to a weight, it does to B too.
Source: llama.cpp, convert_lora_to_gguf.py and src/llama-adapter.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.config.model_lookup.gguf import is_gguf
from quire.errors import CheckpointError, quoted
from quire.gguf.architectures import ARCHITECTURES, Architecture
from quire.gguf.architectures.row import ANY_EXPERT
from quire.gguf.block_types import block_values
from quire.gguf.container import GgufHeader, GgufTensor, read_header
from quire.weights.adapters.config import MAX_RANK, PatternTable, PeftConfig, checked_number
from quire.weights.adapters.parts import Floats
from quire.weights.adapters.read import AdapterFiles, LoraModule, check_size
from quire.weights.mapped_file import MappedFile


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """Heads of a layer of the model."""

    query: int
    kv: int


_NAME = re.compile(r"(?P<base>.+\.weight)\.lora_(?P<kind>[ab])")
_EMBEDDING = "token_embd.weight"


def gguf_file(path: Path) -> Path | None:
    """The GGUF file of an adapter: `path` itself, or the only one of its folder. None: there is
    none."""
    if path.suffix == ".gguf" or (path.is_file() and is_gguf(path)):
        return path
    found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    return found[0] if len(found) == 1 else None


def read_gguf_adapter(
    path: Path, heads: HeadCounts, *, max_rank: int, max_bytes: int
) -> AdapterFiles:
    """Reads an adapter; `heads`: those of the model. Raises CheckpointError for a file that is
    damaged, too large or not supported."""
    header = read_header(path)
    row, alpha = _checked(header)
    modules: dict[str, LoraModule] = {}
    found: dict[str, dict[str, GgufTensor]] = {}
    for name, tensor in header.tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise CheckpointError(f"{path}: the tensor {quoted(name)} is not supported")
        module = _module_of(path, row, match["base"])
        modules.setdefault(module.name, module)
        found.setdefault(module.name, {})[match["kind"]] = tensor
    if not modules:
        raise CheckpointError(f"{path}: the file has no tensors of an adapter")
    ranks = {name: _rank(path, modules[name], pair, max_rank) for name, pair in found.items()}
    read: list[LoraModule] = []
    check_size(
        str(path), [one.shape for pair in found.values() for one in pair.values()], max_bytes
    )
    file = MappedFile(path)
    for name, pair in found.items():
        a, b = (_values(path, file, pair[kind]) for kind in "ab")
        module = modules[name]
        if ANY_EXPERT in name:
            for expert, (one, other) in enumerate(zip(a, b, strict=True)):
                own = name.replace(ANY_EXPERT, str(expert))
                read.append(LoraModule(own, False, arrays={"A": one, "B": other}, pattern=name))
            continue
        module.arrays["A"] = np.ascontiguousarray(a.T if module.is_embedding else a)
        module.arrays["B"] = _rows_of_transformers(path, row, name, b, heads)
        read.append(module)
    file.check()
    config = PeftConfig(
        path,
        rank=max(ranks.values()),
        alpha=alpha,
        is_rank_stabilised=False,
        rank_pattern=PatternTable(ranks, str(path)),
        # Without an alpha, llama.cpp has no scale.
        alpha_pattern=PatternTable({} if alpha else ranks, str(path)),
        has_magnitudes=False,
    )
    return AdapterFiles(str(path), config, tuple(sorted(read, key=lambda one: one.name)))


def _checked(header: GgufHeader) -> tuple[Architecture, float]:
    """The architecture and alpha. Raises CheckpointError for another kind of file."""
    values = header.metadata
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if values.get(key) != wanted:
            raise CheckpointError(
                f"{header.path}: {key} must be {wanted!r}, not {quoted(values.get(key))}"
            )
    if "adapter.alora.invocation_tokens" in values:
        raise CheckpointError(f"{header.path}: adapters that begin at certain tokens (aLoRA) are "
                              "not supported")  # fmt: skip
    row = ARCHITECTURES.get(header.architecture)
    if row is None:
        raise CheckpointError(
            f"{header.path}: adapters of the architecture {quoted(header.architecture)} are not "
            "supported"
        )
    where = f"{header.path}: adapter.lora.alpha"
    return row, checked_number(where, values.get("adapter.lora.alpha", 0.0))


def _module_of(path: Path, row: Architecture, base: str) -> LoraModule:
    """The module of a weight of the base model."""
    places = row.places(base)
    place = places[0] if len(places) == 1 else None
    is_whole = place is not None and place.half is None and place.share is None
    if place is None or not is_whole or place.is_row or place.form != "same":
        raise CheckpointError(f"{path}: {quoted(base)} must be a matrix that an adapter can change")
    if not place.name.endswith(".weight"):
        raise CheckpointError(f"{path}: {quoted(base)} must be a matrix that an adapter can change")
    return LoraModule(place.name.removesuffix(".weight"), base == _EMBEDDING)


def _rank(path: Path, module: LoraModule, pair: dict[str, GgufTensor], max_rank: int) -> int:
    """The rank of a module, whose two tensors must agree on it."""
    if pair.keys() != {"a", "b"}:
        raise CheckpointError(f"{path}: {module.name} must have lora_a and lora_b")
    a, b = pair["a"].shape, pair["b"].shape
    if ANY_EXPERT in module.name and a[:1] == b[:1]:
        a, b = a[1:], b[1:]
    axis = 1 if module.is_embedding else 0
    if len(a) != 2 or len(b) != 2 or a[axis] != b[1] or not 1 <= b[1] <= MAX_RANK:
        raise CheckpointError(
            f"{path}: {module.name} has lora_a {list(a)} and lora_b {list(b)}, which must be of "
            "one rank"
        )
    if b[1] > max_rank:
        raise CheckpointError(f"{path}: LoRA rank {b[1]} is greater than max_lora_rank {max_rank}.")
    return b[1]


def _values(path: Path, file: MappedFile, tensor: GgufTensor) -> Floats:
    kind = tensor.type
    if not kind.is_of_weights:
        raise CheckpointError(f"{path}: {tensor.name} is of type {kind.name}; use F32 or F16")
    blocks = file.slice(tensor.offset, tensor.num_bytes).reshape(-1, kind.block_bytes)
    values = np.array(block_values(kind.name, blocks), np.float32).reshape(tensor.shape)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{path}: {tensor.name} must be finite, but has NaN or infinity")
    return values


def _rows_of_transformers(
    path: Path, row: Architecture, module: str, b: Floats, heads: HeadCounts
) -> Floats:
    """B with its rows in the order of transformers' weight."""
    if row.has_ungrouped_rows and module.endswith("query_key_value"):
        raise CheckpointError(f"{path}: {module} must have its rows in groups of heads")
    is_q, is_k = module.endswith(".q_proj"), module.endswith(".k_proj")
    if not row.has_paired_rows or not (is_q or is_k):
        return b
    count = heads.query if is_q else heads.kv
    if len(b) % (2 * count):
        raise CheckpointError(f"{path}: {module} must have rows for {count} heads, not {len(b)}")
    return np.ascontiguousarray(b.reshape(count, -1, 2, b.shape[1]).swapaxes(1, 2).reshape(b.shape))
