"""Writes native ops as the structs of the native library, loading the weights that they name.

Called while a model is compiled; the result is passed to `quire_set_ops`. Each type that a field of
an op (`NativeOp.record`) may have has a method here, which fills the members of the struct.
`member` declares these members, and how the native library checks them: the build reads it in this
file (`native/generate_structs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np

from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import NativeOp, Storage, StoredWeight
from quire.backends.cpu.lowering.native_op import (
    Exchanged,
    ExchangeKind,
    KVLayer,
    NativePart,
    Numbers,
    Picked,
    Shifted,
)
from quire.backends.cpu.lowering.storage import ITEM_BYTES
from quire.backends.cpu.weights import WeightLoader
from quire.config.kv_layout import KVLayout, KVPlace
from quire.program import Param, Rotary, Value
from quire.program.printer import snake_case


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
    writer = _Writer(storage, kv, block_bytes, library, loader)
    records = library.ffi.new("quire_op[]", len(ops))
    lasting: dict[int, tuple[LastingView, ...]] = {}
    for index, (record, op) in enumerate(zip(records, ops, strict=True)):
        writer.step_slot = step_slots[index] if step_slots else 0
        record.kind = library.code(f"QUIRE_OP_{op.struct.upper()}")
        on_logits = any(storage.places[v].rows == "logits" for v in (*op.writes, *op.reads))
        record.rows = library.code("QUIRE_ROWS_LOGITS" if on_logits else "QUIRE_ROWS_TOKENS")
        writer.fill(getattr(record.u, op.struct), op.record)
        lasting[index] = tuple(writer.lasting)
        writer.lasting.clear()
    return Encoded(records, tuple(writer.exchanges), lasting)


Fill = TypeVar("Fill", bound=Callable[..., None])
_FILLS: dict[str, Callable[..., None]] = {}


def member(type_name: str, members: str, check: str = "") -> Callable[[Fill], Fill]:
    """Declares the members of a struct for a field of this type. `check`: a call of `OpChecks`
    (op_checks.h). Both have the field's name for `{name}`, and for `{choices}` the number of texts
    of a `Literal`."""
    del members, check  # the build reads them

    def decorate(fill: Fill) -> Fill:
        _FILLS[type_name] = fill
        return fill

    return decorate


@cache
def _fields(record: Any) -> tuple[tuple[str, str, Callable[..., None]], ...]:
    """The name, the type and the function of each field."""
    return tuple((one.name, str(one.type), _FILLS[str(one.type)]) for one in fields(record))


class _Writer:
    """Fills structs of a native model under construction with ids, codes and places."""

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

    def fill(self, struct: Any, record: Any) -> None:
        """Fills a struct from the fields of a record."""
        record_type: Any = type(record)
        for name, kind, fill in _fields(record_type):
            fill(self, struct, name, getattr(record, name), kind)

    @member("Value", "quire_view {name}", "view(op.{name})")
    @member("Value | None", "quire_view {name}", "optional_view(op.{name})")
    def _value(self, struct: Any, name: str, value: Value | None, _: str) -> None:
        self._view(getattr(struct, name), () if value is None else (value,))

    @member("tuple[Value, ...]", "quire_view out", "view(op.out)")
    def _values(self, struct: Any, _name: str, values: Sequence[Value], _: str) -> None:
        self._view(struct.out, values)

    def _view(self, view: Any, values: Sequence[Value]) -> None:
        """Values that lie side by side."""
        if not values:
            view.offset = -1
            return
        place = self._places[values[0]]
        view.offset = place.offset_bytes
        view.stride = place.stride
        view.dim = sum(self._places[value].dim for value in values)
        view.dtype = self._library.dtype(place.dtype)
        if place.outlives_stage:
            self.lasting.append(LastingView(view, place.offset_bytes, place.row_bytes))

    @member("int", "int32_t {name}")
    @member("int | None", "int32_t {name}")
    @member("bool", "int32_t {name}")
    @member("ActivationBits", "int32_t {name}")
    @member("float", "float {name}")
    @member("float | None", "float {name}")
    def _number(self, struct: Any, name: str, value: float | None, _: str) -> None:
        setattr(struct, name, value or 0)

    @member("Activation", "int32_t {name}", 'choice(op.{name}, {choices}, "{name}")')
    @member("Activation | None", "int32_t {name}", 'choice(op.{name}, {choices}, "{name}")')
    @member("HeadsTarget", "int32_t {name}", 'choice(op.{name}, {choices}, "{name}")')
    @member("NormKind", "int32_t {name}", 'choice(op.{name}, {choices}, "{name}")')
    @member("RouteScore", "int32_t {name}", 'choice(op.{name}, {choices}, "{name}")')
    def _choice(self, struct: Any, name: str, value: str | None, kind: str) -> None:
        prefix = snake_case(kind.removesuffix(" | None"))
        code = self._library.code(f"QUIRE_{prefix}_{value or 'identity'}".upper())
        setattr(struct, name, code)

    @member("Matrix", "int32_t {name}", "matrix(op.{name})")
    def _matrix(self, struct: Any, name: str, param: Param, _: str) -> None:
        setattr(struct, name, self._loader.weight(StoredWeight("matrix", param)))

    @member("StoredWeight", "int32_t {name}")
    @member("StoredWeight | None", "int32_t {name}")
    def _weight(self, struct: Any, name: str, weight: StoredWeight | None, _: str) -> None:
        setattr(struct, name, -1 if weight is None else self._loader.weight(weight))

    @member("Vector", "int32_t {name}", "some_vector(op.{name})")
    @member("Vector | None", "int32_t {name}", "optional_vector(op.{name})")
    @member("Shifted | None", "int32_t {name}", "optional_vector(op.{name})")
    @member("Numbers | None", "int32_t {name}", "optional_vector(op.{name})")
    def _numbers(self, struct: Any, name: str, numbers: Numbers | None, _: str) -> None:
        match numbers:
            case Shifted():
                found = self._loader.vector(numbers.param, plus=numbers.plus)
            case Picked():
                found = self._loader.gathered(numbers.param, np.array(numbers.places, np.intp))
            case tuple():
                found = self._loader.constant(np.array(numbers, np.float32))
            case _:
                found = self._loader.vector(numbers)
        setattr(struct, name, found)

    @member("Rotary | None", "int32_t {name}")
    def _rotation(self, struct: Any, name: str, rotation: Rotary | None, _: str) -> None:
        setattr(struct, name, self._loader.rope(rotation))

    @member("KVLayer", "quire_kv_place {name}", "kv_place(op.{name})")
    def _kv_layer(self, struct: Any, name: str, layer: KVLayer, _: str) -> None:
        found = KVPlace(0, self.step_slot) if layer is None else self._kv_places[layer]
        place = getattr(struct, name)
        place.layer_group = found.group
        place.slot = found.slot

    @member("StateLayer", "quire_state state")
    def _state_layer(self, struct: Any, _name: str, layer: int, _: str) -> None:
        shape, offsets = self._states[layer]
        state = struct.state
        state.layer_group = self._kv_places[layer].group
        state.first_entry, state.first_offset = offsets[0]
        state.num_pieces = shape.num_pieces
        state.piece_bytes = shape.piece_bytes

    @member("Exchanged", "int32_t first; int32_t exchange", "exchange(op.exchange)")
    @member("Exchanged | None", "int32_t first; int32_t exchange")
    def _exchanged(self, struct: Any, _name: str, rows: Exchanged | None, _: str) -> None:
        struct.exchange = -1
        if rows is None:
            return
        struct.first, struct.exchange = rows.first, len(self.exchanges)
        item = ITEM_BYTES["float32" if rows.like is None else self._places[rows.like].dtype]
        spans: tuple[tuple[int, int], ...] = ()
        if rows.split is not None:
            spans = (rows.split.scaled(item) if rows.kind == "columns" else rows.split).spans
        self.exchanges.append(Exchange(rows.kind, spans, rows.width * item, rows.width))

    @member("tuple[HeadsPart, ...]", "quire_heads_part {name}[3]; int32_t num_{name}")
    def _parts(self, struct: Any, name: str, parts: Sequence[NativePart], _: str) -> None:
        setattr(struct, f"num_{name}", len(parts))
        for place, part in zip(getattr(struct, name), parts, strict=False):
            self.fill(place, part)

    @member("str", "")
    def _text(self, struct: Any, name: str, text: str, _: str) -> None:
        """A name for messages."""
