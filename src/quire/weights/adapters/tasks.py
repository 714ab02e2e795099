"""Adapters that lie in the checkpoint of their base model: the tasks of Jina Embeddings 3.

`lora_adaptations` in config.json names the tasks. Where others have a matrix `X.weight`, the
checkpoint has `X.parametrizations.weight.original`, and `X.parametrizations.weight.0.lora_A` and
`.lora_B`, whose first dimension is the task: [tasks, rank, K] and [tasks, N, rank], and for an
embedding [tasks, V, rank] and [tasks, rank, D].

Source: jinaai/xlm-roberta-flash-implementation, `modeling_lora.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from quire.config.checkpoint.adapter_tasks import MAX_CONFIG_BYTES, tasks_of
from quire.config.checkpoint.model_files import read_json_object
from quire.errors import CheckpointError, quoted
from quire.weights.adapters.config import MAX_RANK, PatternTable, PeftConfig, checked_number
from quire.weights.adapters.parts import Floats
from quire.weights.adapters.read import AdapterFiles, LoraModule, read_adapter
from quire.weights.open import open_checkpoint
from quire.weights.store import WeightStore

_MIDDLE = ".parametrizations.weight.0.lora_"
_UNUSED = "pooler."
"""Modules that no vector is computed with."""


def read_adapter_or_task(path: Path, *, max_rank: int, max_bytes: int) -> AdapterFiles:
    """Reads the adapter in a folder, or the adapter CHECKPOINT/TASK. Raises CheckpointError as
    `read_adapter` does, and for an unknown task."""
    tasks = [] if path.is_dir() else tasks_of(path.parent)
    if not tasks:
        return read_adapter(path, max_rank=max_rank, max_bytes=max_bytes)
    if path.name not in tasks:
        raise CheckpointError(
            f"{path.parent} has no task {quoted(path.name)}; it has {', '.join(map(quoted, tasks))}"
        )
    return _read_task(path.parent, tasks.index(path.name), len(tasks), max_rank, max_bytes)


def _read_task(
    checkpoint: Path, task: int, num_tasks: int, max_rank: int, max_bytes: int
) -> AdapterFiles:
    path = checkpoint / "config.json"
    fields = read_json_object(path, max_bytes=MAX_CONFIG_BYTES)
    rank, alpha = fields.get("lora_rank"), fields.get("lora_alpha", 1)
    if type(rank) is not int or not 1 <= rank <= min(max_rank, MAX_RANK):
        raise CheckpointError(
            f"{path}: lora_rank must be a whole number from 1 to {max_rank} (max_lora_rank), got "
            f"{quoted(rank)}"
        )
    alpha = checked_number(f"{path}: lora_alpha", alpha)
    table = PatternTable({}, str(path))
    config = PeftConfig(path, rank, alpha, False, table, table, False)
    with closing(open_checkpoint(checkpoint)) as store:
        modules = tuple(_modules(store, task, num_tasks, rank, max_bytes))
        if not modules:
            raise CheckpointError(f"{store.source}: the file has no tensors of an adapter")
        return AdapterFiles(store.source, config, modules)


def _modules(
    store: WeightStore, task: int, num_tasks: int, rank: int, max_bytes: int
) -> Iterator[LoraModule]:
    names, total = set(store.names()), 0
    for name in sorted(names):
        module, middle, kind = name.rpartition(_MIDDLE)
        if not middle or kind != "A" or module.startswith(_UNUSED) or f".{_UNUSED}" in module:
            continue
        is_embedding = "embeddings." in module
        found = LoraModule(module, is_embedding)
        for part in "AB":
            own = f"{module}{_MIDDLE}{part}"
            if own not in names:
                raise CheckpointError(f"{store.source}: {module} has no tensor lora_{part}")
            found.arrays[part] = _read(store, own, task, num_tasks, rank, is_embedding, part == "A")
            total += found.arrays[part].nbytes
            if total > max_bytes:
                raise CheckpointError(
                    f"{store.source}: the adapter has more than {max_bytes} bytes, the most that "
                    "are possible with this model and max_lora_rank"
                )
        yield found


def _read(
    store: WeightStore,
    name: str,
    task: int,
    num_tasks: int,
    rank: int,
    is_embedding: bool,
    is_first: bool,
) -> Floats:
    """A [rank, K] or B [N, rank] of a task."""
    shape = store.shape(name)
    axis = 1 if is_first is not is_embedding else 2
    if len(shape) != 3 or shape[0] != num_tasks or shape[axis] != rank:
        raise CheckpointError(
            f"{store.source}: {name} has shape {list(shape)}, which must have {num_tasks} tasks "
            f"and rank {rank}"
        )
    array: Floats = np.array(store.get(name).to_float32()[task])
    store.release(name)
    if not np.isfinite(array).all():
        raise CheckpointError(f"{store.source}: {name} must be finite, but has NaN or infinity")
    return np.ascontiguousarray(array.T) if is_embedding else array
