"""Random adapters of a checkpoint of any family, and the checkpoint with an adapter in its weights,
which transformers computes as PEFT computes the adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from adapter_writer import write_files, write_merged
from safetensors.numpy import load_file

from quire.config.checkpoint.model_files import read_config
from quire.models import build_program, name_map
from quire.planning.stored_matrices import as_stored
from quire.program.passes import run_passes
from quire.weights.adapters.slots import AdapterSlots


def changeable(directory: Path) -> dict[str, bool]:
    """The checkpoint's tensors that an adapter can change, except tables that are the head too;
    whether each is stored as [K, N]."""
    config = as_stored(read_config(directory), directory)
    slots = AdapterSlots(run_passes(build_program(config), "dense")).all()
    tables = {slot.tensor.name for slot in slots if slot.is_embedding}
    canonical = name_map(config).canonical
    found = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        own = [slot for slot in slots if slot.tensor.name == canonical(name)]
        if own and tensor.ndim == 2 and own[0].tensor.name not in tables:
            found[name] = own[0].tensor.transposed
    return found


def write_random_adapter(
    folder: Path, directory: Path, seed: int, *, share: float = 0.8, **config: Any
) -> Path:
    """An adapter of some of the tensors, each of a rank from 1 to 7."""
    random = np.random.default_rng(seed)
    weights = load_file(directory / "model.safetensors")
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    for name, transposed in sorted(changeable(directory).items()):
        if random.random() > share and tensors:
            continue
        weight = weights[name].T if transposed else weights[name]
        module, (rows, depth) = name.removesuffix(".weight"), weight.shape
        rank = ranks[module] = int(random.integers(1, 8))
        prefix = f"base_model.model.{module}"
        size = float(np.abs(weight).mean())
        tensors[f"{prefix}.lora_A.weight"] = random.standard_normal((rank, depth))
        tensors[f"{prefix}.lora_B.weight"] = 0.2 * size * random.standard_normal((rows, rank))
        if config.get("use_dora"):
            norms = np.sqrt(np.square(weight).sum(axis=1))
            tensors[f"{prefix}.lora_magnitude_vector"] = norms * random.uniform(0.8, 1.2, rows)
    config.setdefault("alpha_pattern", {module: rank / 2 for module, rank in ranks.items()})
    write_files(folder, tensors, r=3, target_modules=[], rank_pattern=ranks, **config)
    return folder


def write_merged_checkpoint(folder: Path, directory: Path, adapter: Path) -> Path:
    """The checkpoint with the adapter in its weights."""
    return write_merged(folder, directory, adapter, transposed=changeable(directory))
