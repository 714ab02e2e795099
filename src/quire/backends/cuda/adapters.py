"""Adapters in the device's memory: each has a piece of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import TYPE_NAMES
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.kv_formats import narrow_to_bfloat16
from quire.backends.records import LoadedAdapter, StepBatch
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.program import Embed, Experts, Linear, Logits, Param, Program
from quire.weights.adapters import AdapterPart, AdapterWeights


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part of an adapter, as `weights.adapters.AdapterPart`."""

    expert: int
    first_row: int
    """Counted over the rows of the expert's matrix."""
    num_rows: int
    rank: int
    scale: float
    type_name: str
    """Triton's name of the type of `a` and `b`."""
    a: Buffer
    b: Buffer
    bias: Buffer | None
    gains: Buffer | None


class CudaAdapter(LoadedAdapter):
    """The parts of an adapter, by the name of the weight and whether they change an embedding."""

    def __init__(
        self,
        device: Device,
        program: Program,
        weights: AdapterWeights,
        dtype: Dtype,
        most_rank: int,
    ) -> None:
        """Copies the numbers. Raises BackendError if they do not fit the program."""
        self._device, self._memory = device, Memory()
        if weights.rank > most_rank:
            raise BackendError(
                f"the adapter has rank {weights.rank}; the model was compiled for {most_rank}"
            )
        self.parts: dict[tuple[str, bool], list[DevicePart]] = defaultdict(list)
        params = _params(program)
        uploads: list[tuple[Buffer, NDArray[Any]]] = []
        for part in weights.parts:
            param = params.get((part.param, part.is_embedding))
            if param is None or not _fits(part, param):
                raise BackendError(f"the adapter does not fit the weight {part.param!r}")
            places = {}
            for name in ("a", "b", "bias", "gains"):
                array = getattr(part, name)
                if array is not None:
                    is_matrix = name in ("a", "b")
                    kept = _kept(array, dtype if is_matrix else "float32")
                    places[name] = self._memory.add(kept.nbytes)
                    uploads.append((places[name], kept))
            expert, first_row = divmod(part.first_row, param.shape[-2])
            self.parts[part.param, part.is_embedding].append(
                DevicePart(
                    expert, first_row, len(part.b), part.rank, part.scale, TYPE_NAMES[dtype],
                    places["a"], places["b"], places.get("bias"), places.get("gains"),
                )
            )  # fmt: skip
        device.hold(self._memory)
        for place, kept in uploads:
            device.write(place, kept)

    def __del__(self) -> None:
        """The last reference is gone, on any thread."""
        self._device.drop(self._memory)

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes


def adapters_of(batch: StepBatch) -> list[CudaAdapter]:
    """The adapters of a step, each once."""
    given = dict.fromkeys(batch.adapters or ())
    return [one for one in given if isinstance(one, CudaAdapter)]


def owners_of(batch: StepBatch) -> NDArray[np.int32]:
    """For each token, the place of its adapter in `adapters_of`; -1: it has none."""
    places = {id(one): place for place, one in enumerate(adapters_of(batch))}
    requests = batch.adapters or [None] * len(batch.context_lens)
    numbers = np.array([places.get(id(one), -1) for one in requests], np.int32)
    return np.repeat(numbers, np.diff(batch.seq_starts))


def check_adapters(batch: StepBatch, *, has_room: bool) -> None:
    """Raises BackendError for adapters that the model cannot use."""
    given = batch.adapters or []
    if given and len(given) != len(batch.context_lens):
        raise BackendError(f"{len(given)} adapters for {len(batch.context_lens)} requests")
    found = [one for one in given if one is not None]
    if not all(isinstance(one, CudaAdapter) for one in found):
        raise BackendError("an adapter was loaded by another backend")
    if found and not has_room:
        raise BackendError("the model was compiled without adapters; set max_adapter_width")


def _params(program: Program) -> dict[tuple[str, bool], Param]:
    """The weights that an adapter may change."""
    found: dict[tuple[str, bool], Param] = {}
    for op in program.ops:
        if isinstance(op, Embed):
            found[op.table.name, True] = op.table
        elif isinstance(op, Linear | Logits):
            found[op.weight.name, False] = op.weight
        elif isinstance(op, Experts):
            found |= {(param.name, False): param for param in (op.gate_up, op.down)}
    return found


def _fits(part: AdapterPart, param: Param) -> bool:
    """Whether the sizes of a part are those of rows of one matrix."""
    *_, num_rows, depth = param.shape
    rank, rows = part.rank, len(part.b)
    if part.is_embedding:
        return part.a.shape == (num_rows, rank) and part.b.shape == (depth, rank)
    first = part.first_row % num_rows
    is_inside = first + rows <= num_rows and part.first_row < math.prod(param.shape[:-1])
    vectors = (part.bias, part.gains)
    are_long = all(one is None or one.shape == (rows,) for one in vectors)
    return is_inside and are_long and part.a.shape == (rank, depth)


def _kept(array: NDArray[np.float32], dtype: Dtype) -> NDArray[Any]:
    numbers = np.ascontiguousarray(array, np.float32)
    return narrow_to_bfloat16(numbers) if dtype == "bfloat16" else numbers
