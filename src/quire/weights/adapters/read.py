"""`read_adapter`: the tensors of an adapter's folder, by module.

Tensors of PEFT are named `base_model.model.<module>.lora_A.weight` [rank, K], `.lora_B.weight`
[N, rank], `.lora_B.bias` [N], for embeddings `.lora_embedding_A` [rank, V] and `.lora_embedding_B`
[D, rank], and `.lora_magnitude_vector` [N] for DoRA. Matrices of all experts of a layer are
explained in `experts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from time import sleep

import numpy as np

from quire.config.checkpoint.model_files import has_file
from quire.errors import CheckpointError
from quire.weights.adapters.config import MAX_RANK, PeftConfig, read_config
from quire.weights.adapters.parts import Floats
from quire.weights.safetensors import SafetensorsFile
from quire.weights.store import WeightStore
from quire.weights.torch_bin import TorchFile

_FILES: dict[str, Callable[[Path], WeightStore]] = {
    "adapter_model.safetensors": SafetensorsFile,
    "adapter_model.bin": TorchFile,
    "adapter_model.pt": TorchFile,
}
_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<kind>A|B|embedding_A|embedding_B"
    r"|magnitude_vector)(?:\.default)?(?:\.(?P<what>weight|bias))?"
)
EXPERTS = re.compile(r"(?P<experts>(?:.+\.)?experts)(?:\.base_layer)*(?:\.w(?P<part>[123]))?")
"""Names of modules with matrices of all experts of a layer."""
_IGNORED = (".base_layer.weight", ".base_layer.bias")
"""Ends of names of tensors that PEFT saves although they are the base model's."""
_SAVED = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)(?:\.modules_to_save(?:\.default)?)?"
    r"\.(?P<what>weight|bias)"
)
"""Names of tensors of modules that are stored whole."""
_EMBEDDING = {"embedding_A": "A", "embedding_B": "B"}


@dataclass(slots=True)
class LoraModule:
    """The tensors of one module, by kind: A, B, bias, magnitude; or if it is stored whole, weight
    and bias."""

    name: str
    is_embedding: bool
    is_saved: bool = False
    """Whether it is stored whole."""
    tensors: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Floats] = field(default_factory=dict)
    pattern: str = ""
    """The name that the patterns of the configuration refer to, if it is another one."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter as it was read."""

    source: str
    config: PeftConfig
    modules: tuple[LoraModule, ...]
    max_rank: int = MAX_RANK

    def scale_of(self, module: LoraModule) -> float:
        """The factor of B A x."""
        return 1.0 if module.is_saved else self.config.scale_of(module.pattern or module.name)


def read_adapter(folder: Path, *, max_rank: int, max_bytes: int) -> AdapterFiles:
    """Reads an adapter. Every size is checked before a tensor is read.

    Raises CheckpointError for files that are damaged, too large or not supported.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder with an adapter")
    config = read_config(folder)
    with closing(open_adapter(folder)) as store:
        modules = _modules(store, config)
        for module in modules:
            _check(store, module, config, max_rank)
        names = [name for one in modules for name in one.tensors.values()]
        check_size(store.source, map(store.shape, names), max_bytes)
        for module in modules:
            for kind, name in module.tensors.items():
                module.arrays[kind] = _read(store, name)
                sleep(0)  # lets the thread of a step have the interpreter
        store.check()
        return AdapterFiles(store.source, config, tuple(modules), max_rank)


def open_adapter(folder: Path) -> WeightStore:
    """Opens the file with an adapter's tensors. Raises CheckpointError."""
    for name, reader in _FILES.items():
        if has_file(folder / name):
            return reader(folder / name)
    raise CheckpointError(f"{folder} doesn't contain tensors: it has no {', '.join(_FILES)}")


def _modules(store: WeightStore, config: PeftConfig) -> list[LoraModule]:
    found: dict[str, LoraModule] = {}
    for name in sorted(store.names()):
        if name.endswith(_IGNORED):
            continue
        match = _NAME.fullmatch(name)
        if match is None and (saved := _SAVED.fullmatch(name)) is not None:
            key = saved["module"]
            if any(f".{one}." in f".{key}." for one in config.saved):
                module = found.setdefault(key, LoraModule(key, False, is_saved=True))
                module.tensors[saved["what"]] = name
                continue
        if match is None:
            raise CheckpointError(f"{store.source}: the tensor {name!r} is not supported")
        kind = _EMBEDDING.get(match["kind"], match["kind"])
        is_embedding = match["kind"] in _EMBEDDING
        key = match["module"]
        module = found.setdefault(key, LoraModule(key, is_embedding))
        if module.is_saved:
            raise CheckpointError(f"{store.source}: {key} is stored whole and as an adapter")
        if match["what"] == "bias":
            if kind != "B":
                raise CheckpointError(f"{store.source}: the tensor {name!r} is not supported")
            kind = "bias"
        if kind == "magnitude_vector":
            kind = "magnitude"
        elif is_embedding is not module.is_embedding:
            raise CheckpointError(f"{store.source}: {key} has tensors of two kinds of modules")
        if kind in module.tensors:
            raise CheckpointError(f"{store.source}: {key} has two tensors {kind}")
        module.tensors[kind] = name
    if not found:
        raise CheckpointError(f"{store.source}: the file has no tensors of an adapter")
    if config.saved and not any(module.is_saved for module in found.values()):
        raise CheckpointError(
            f"{config.path}: modules_to_save names {', '.join(config.saved)}, and {store.source} "
            "has the weights of none of them"
        )
    return [*found.values()]


def _check(store: WeightStore, module: LoraModule, config: PeftConfig, max_rank: int) -> None:
    """Checks the shapes of a module's tensors against each other and the configuration."""
    if module.is_saved:
        _check_saved(store, module, config, max_rank)
        return
    for kind in ("A", "B"):
        if kind not in module.tensors:
            raise CheckpointError(f"{store.source}: {module.name} has no tensor lora_{kind}")
    shapes = {kind: store.shape(name) for kind, name in module.tensors.items()}
    if EXPERTS.fullmatch(module.name):
        _check_experts(store, module, shapes, config)
        return
    rank = checked_rank(config, module.name, max_rank)
    a, b = shapes["A"], shapes["B"]
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise CheckpointError(
            f"{store.source}: {module.name} has A {list(a)} and B {list(b)}, which are not of rank "
            f"{rank}, as {config.path} says"
        )
    for kind in ("bias", "magnitude"):
        if kind in shapes and np.prod(shapes[kind]) != b[0]:
            raise CheckpointError(
                f"{store.source}: {module.name} has a {kind} of shape {list(shapes[kind])}, which "
                f"must have {b[0]} numbers"
            )
    if ("magnitude" in shapes) is not config.has_magnitudes:
        raise CheckpointError(
            f"{store.source}: {module.name} must have a magnitude vector if use_dora is true in "
            f"{config.path}, and none otherwise"
        )


def checked_rank(config: PeftConfig, module: str, max_rank: int) -> int:
    """The rank of a module. Raises CheckpointError if it is too large."""
    rank = config.rank_of(module)
    if rank > max_rank:
        raise CheckpointError(
            f"{config.path}: LoRA rank {rank} is greater than max_lora_rank {max_rank}."
        )
    return rank


def _check_experts(
    store: WeightStore,
    module: LoraModule,
    shapes: Mapping[str, tuple[int, ...]],
    config: PeftConfig,
) -> None:
    """Checks matrices of all experts of a layer. Their rank is checked with the model."""
    a, b = shapes["A"], shapes["B"]
    num_dims = 2 if module.name.endswith(("experts", "base_layer")) else 3
    fits = len(a) == len(b) == num_dims and 0 not in (*a, *b) and a[-2] == b[-1]
    if not fits or len(shapes) > 2 or config.has_magnitudes:
        raise CheckpointError(
            f"{store.source}: {module.name} must have A and B of {num_dims} dimensions and of one "
            f"rank, without a bias and without use_dora, but has A {list(a)} and B {list(b)}"
        )


def _check_saved(store: WeightStore, module: LoraModule, config: PeftConfig, max_rank: int) -> None:
    """Checks a module that is stored whole. Its change is a matrix of full rank."""
    shape = store.shape(module.tensors["weight"]) if "weight" in module.tensors else ()
    if len(shape) != 2 or not {"weight", "bias"}.issuperset(module.tensors):
        raise CheckpointError(
            f"{store.source}: {module.name} must have a weight of two dimensions to be one of "
            "modules_to_save"
        )
    if "bias" in module.tensors and store.shape(module.tensors["bias"]) != shape[:1]:
        raise CheckpointError(
            f"{store.source}: the bias of {module.name} must have {shape[0]} numbers"
        )
    if min(shape) > max_rank:
        raise CheckpointError(
            f"{config.path}: modules_to_save has {module.name}, whose change is of rank "
            f"{min(shape)}, which is greater than max_lora_rank {max_rank}."
        )


def check_size(source: str, shapes: Iterable[tuple[int, ...]], max_bytes: int) -> None:
    """Raises CheckpointError for tensors that are larger than the model allows."""
    total = sum(4 * prod(shape) for shape in shapes)
    if total > max_bytes:
        raise CheckpointError(
            f"{source}: the adapter has {total} bytes, and at most {max_bytes} are possible with "
            "this model and max_lora_rank"
        )


def _read(store: WeightStore, name: str) -> Floats:
    array: Floats = np.array(store.get(name).to_float32())
    store.release(name)
    if not np.isfinite(array).all():
        raise CheckpointError(f"{store.source}: {name} must be finite, but has NaN or infinity")
    return array
