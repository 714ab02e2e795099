"""Writes native ops as the structs of quire.h, loading the weights that they name.

Called while a model is compiled; the result is passed to `quire_set_ops`. The class of an op
(`lowering/ops`) fills its struct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import Storage
from quire.backends.cpu.lowering.native_op import (
    ExchangeKind,
    Fields,
    NativeOp,
    Rotation,
    StoredWeight,
)
from quire.backends.cpu.lowering.storage import ITEM_BYTES
from quire.backends.cpu.weights import WeightLoader
from quire.config.kv_groups import KVLayout, KVPlace
from quire.config.records import Dtype
from quire.program import Activation, Param, Split, Value

_DTYPES = {"float32": "QUIRE_F32", "bfloat16": "QUIRE_BF16"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A value that is exchanged, counted in bytes of a row."""

    kind: ExchangeKind
    spans: tuple[tuple[int, int], ...]
    """Bytes of a row that each rank has, as (first, count); of "owner", the token ids of each
    rank."""
    row_bytes: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ops for a native model."""

    records: Any
    """A cffi array of quire_op."""
    exchanges: tuple[Exchange, ...]
    """By the number that the ops have of them."""
    lasting: Mapping[int, tuple[LastingView, ...]]
    """By the index of an op, its values that have the rows of all pieces of a step."""


@dataclass(frozen=True, slots=True)
class LastingView:
    """A value in a record, whose place is that of its first row."""

    view: Any
    """A quire_view of the records."""
    offset_bytes: int
    row_bytes: int

    def begin_at(self, row: int) -> None:
        """Makes the op begin at a row."""
        self.view.offset = self.offset_bytes + row * self.row_bytes


def encode(
    ops: Sequence[NativeOp],
    storage: Storage,
    kv: KVLayout,
    block_bytes: int,
    library: Library,
    loader: WeightLoader,
    step_slots: Sequence[int] = (),
) -> Encoded:
    """`block_bytes`: those of a block of the KV cache. `step_slots`: by op, where K and V of one
    step lie, see `step_kv`."""
    fields = _ModelFields(storage, kv, block_bytes, library, loader)
    records = library.ffi.new("quire_op[]", len(ops))
    lasting: dict[int, tuple[LastingView, ...]] = {}
    for index, (record, op) in enumerate(zip(records, ops, strict=True)):
        fields.step_slot = step_slots[index] if step_slots else 0
        record.kind = library.code(f"QUIRE_OP_{op.struct.upper()}")
        on_logits = any(storage.places[v].rows == "logits" for v in (*op.writes, *op.reads))
        record.rows = library.code("QUIRE_ROWS_LOGITS" if on_logits else "QUIRE_ROWS_TOKENS")
        op.fill(getattr(record.u, op.struct), fields)
        lasting[index] = tuple(fields.lasting)
        fields.lasting.clear()
    return Encoded(records, tuple(fields.exchanges), lasting)


class _ModelFields(Fields):
    """Ids, codes and places in a native model under construction."""

    def __init__(
        self,
        storage: Storage,
        kv: KVLayout,
        block_bytes: int,
        library: Library,
        loader: WeightLoader,
    ) -> None:
        self._places = storage.places
        self._kv_places = kv.places()
        self._states = {
            layer: (state, offsets)
            for group in kv.states
            for state, (layer, offsets) in zip(
                group.states, group.offsets(block_bytes).items(), strict=True
            )
        }
        self._library = library
        self._loader = loader
        self.exchanges: list[Exchange] = []
        self.lasting: list[LastingView] = []
        self.step_slot = 0

    def code(self, name: str) -> int:
        return self._library.code(name)

    def activation(self, activation: Activation | None) -> int:
        name = "none" if activation in (None, "identity") else activation
        return self.code(f"QUIRE_ACT_{name.upper()}")

    def view(self, view: Any, value: Value | None, dim: int | None = None) -> None:
        if value is None:
            view.offset = -1
            return
        place = self._places[value]
        view.offset = place.offset_bytes
        view.stride = place.stride
        view.dim = place.dim if dim is None else dim
        view.dtype = self.code(_DTYPES[place.dtype])
        if place.outlives_stage:
            self.lasting.append(LastingView(view, place.offset_bytes, place.row_bytes))

    def kv_place(self, place: Any, layer: int | None) -> None:
        found = KVPlace(0, self.step_slot) if layer is None else self._kv_places[layer]
        place.layer_group = found.group
        place.slot = found.slot

    def state(self, state: Any, layer: int) -> None:
        shape, offsets = self._states[layer]
        state.layer_group = self._kv_places[layer].group
        state.first_entry, state.first_offset = offsets[0]
        state.num_pieces = shape.num_pieces
        state.piece_bytes = shape.piece_bytes

    def weight(self, weight: StoredWeight) -> int:
        return self._loader.weight(weight)

    def vector(self, param: Param | None, *, plus: float = 0.0) -> int:
        return self._loader.vector(param, plus=plus)

    def gathered(self, param: Param, places: NDArray[np.intp]) -> int:
        return self._loader.gathered(param, places)

    def constant(self, values: NDArray[np.float32]) -> int:
        return self._loader.constant(values)

    def rope(self, rotation: Rotation | None) -> int:
        return self._loader.rope(rotation)

    def dtype(self, value: Value) -> Dtype:
        return self._places[value].dtype

    def exchange(self, kind: ExchangeKind, split: Split | None, value: Value | Dtype) -> int:
        if kind == "columns" and split is None:
            return -1
        dtype = self.dtype(value) if isinstance(value, Value) else value
        item = ITEM_BYTES[dtype]
        width = value.dim if isinstance(value, Value) else 0
        spans: tuple[tuple[int, int], ...] = ()
        if split is not None:
            spans = (split.scaled(item) if kind == "columns" else split).spans
            width = width or split.total
        self.exchanges.append(Exchange(kind, spans, width * item, width))
        return len(self.exchanges) - 1
