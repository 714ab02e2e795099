"""Adapters in native memory: `AdapterLoader` makes them and puts them in the batch of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype, LoadedAdapter, StepBatch
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import StoredWeight
from quire.errors import BackendError
from quire.weights.adapters import AdapterPart, AdapterWeights


class CpuAdapter(LoadedAdapter):
    """An adapter that native code owns."""

    def __init__(self, library: Library, handle: Any) -> None:
        self.handle = library.ffi.gc(handle, library.lib.quire_adapter_destroy)
        self._num_bytes: int = library.lib.quire_adapter_bytes(handle)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


class AdapterLoader:
    """Knows the ids of a native model's weights."""

    def __init__(self, library: Library, ids: Mapping[StoredWeight, int]) -> None:
        self._library = library
        matrices = [(w.param, i) for w, i in ids.items() if w.kind == "matrix"]
        self._matrices = {param.name: (i, param.shape[-2]) for param, i in matrices}
        """The id of a weight's first matrix, and the rows of each."""
        self._tables = {w.param.name: i for w, i in ids.items() if w.kind == "table"}

    def load(self, model: Any, weights: AdapterWeights, dtype: Dtype) -> CpuAdapter:
        """Copies the parts. Any thread. Raises BackendError if they do not fit the model."""
        ffi, lib = self._library.ffi, self._library.lib
        alive: list[Any] = []
        records = ffi.new("quire_adapter_part[]", len(weights.parts))
        for record, part in zip(records, weights.parts, strict=True):
            self._fill(record, part, alive)
        handle = lib.quire_adapter_create(model, records, len(records), self._library.dtype(dtype))
        if handle == ffi.NULL:
            raise self._library.error("the adapter cannot be loaded")
        return CpuAdapter(self._library, handle)

    def place(self, native: Any, batch: StepBatch, alive: list[Any]) -> None:
        """Fills in the adapters of a quire_batch."""
        given = batch.adapters or []
        if len(given) != len(batch.context_lens):
            raise BackendError(f"{len(given)} adapters for {len(batch.context_lens)} requests")
        places: dict[int, int] = {}
        handles: list[Any] = []
        numbers = np.full(len(given), -1, np.int32)
        for index, adapter in enumerate(given):
            if adapter is None:
                continue
            if not isinstance(adapter, CpuAdapter):
                raise BackendError("an adapter was loaded by another backend")
            if id(adapter) not in places:
                places[id(adapter)] = len(handles)
                handles.append(adapter.handle)
            numbers[index] = places[id(adapter)]
        ffi = self._library.ffi
        listed = ffi.new("const quire_adapter *[]", handles)
        pointer = ffi.from_buffer("int32_t[]", numbers)
        alive += [listed, pointer]
        native.adapter_of, native.adapters, native.num_adapters = pointer, listed, len(handles)

    def _fill(self, record: Any, part: AdapterPart, alive: list[Any]) -> None:
        first, num_rows = self._matrices.get(part.param, (-1, len(part.b)))
        expert, first_row = divmod(part.first_row, num_rows)
        record.matrix = first if first < 0 else first + expert
        record.table = self._tables.get(part.param, -1) if first < 0 else -1
        record.is_embedding = part.is_embedding
        record.rank = part.rank
        record.first_row, record.rows = first_row, len(part.b)
        record.scale = part.scale
        for name in ("a", "b", "bias", "gains"):
            array: NDArray[np.float32] | None = getattr(part, name)
            if array is not None:
                exact = np.ascontiguousarray(array, np.float32)
                pointer = self._library.ffi.from_buffer("float[]", exact)
                alive.append(pointer)
                setattr(record, name, pointer)
