"""Writes native ops as the structs of quire.h, loading the weights that they name.

Called while a model is compiled; the result is handed to `quire_set_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import NativeOp, Storage
from quire.backends.cpu.lowering.native_ops import (
    HeadsPart,
    NativeAttention,
    NativeEmbed,
    NativeHeads,
    NativeLinear,
    NativeLogits,
    NativeNorm,
    NativePointwise,
    NativePositions,
    NativeTakeRows,
)
from quire.backends.cpu.weights import WeightLoader
from quire.config.kv_groups import KVPlace
from quire.errors import BackendError
from quire.program import Value

_ACTIVATIONS = {None: "NONE", "silu": "SILU", "gelu": "GELU", "gelu_tanh": "GELU_TANH",
                "relu": "RELU"}  # fmt: skip
_DTYPES = {"float32": "QUIRE_F32", "bfloat16": "QUIRE_BF16"}
_TARGETS = {"view": "QUIRE_TO_VIEW", "keys": "QUIRE_TO_KEYS", "values": "QUIRE_TO_VALUES"}


def encode(
    ops: Sequence[NativeOp],
    storage: Storage,
    kv_places: Mapping[int, KVPlace],
    library: Library,
    loader: WeightLoader,
) -> Any:
    """A cffi array of quire_op. `kv_places`: of every attention layer."""
    encoder = _Encoder(ops, storage, kv_places, library, loader)
    records = library.ffi.new("quire_op[]", len(ops))
    for record, op in zip(records, ops, strict=True):
        encoder.fill(record, op)
    return records


class _Encoder:
    """Fills one record after the other; holds what they have in common."""

    def __init__(
        self,
        ops: Sequence[NativeOp],
        storage: Storage,
        kv_places: Mapping[int, KVPlace],
        library: Library,
        loader: WeightLoader,
    ) -> None:
        self._places = storage.places
        self._kv_places = kv_places
        self._lib = library.lib
        self._load = loader
        self._head_names = {op.weight.name for op in ops if isinstance(op, NativeLogits)}

    def fill(self, record: Any, op: NativeOp) -> None:
        on_logits = any(self._places[v].rows == "logits" for v in (*op.writes, *op.reads))
        record.rows = self._lib.QUIRE_ROWS_LOGITS if on_logits else self._lib.QUIRE_ROWS_TOKENS
        match op:
            case NativeEmbed():
                self._embed(record, op)
            case NativePositions():
                self._positions(record, op)
            case NativeNorm():
                self._norm(record, op)
            case NativeLinear():
                self._linear(record, op)
            case NativeHeads():
                self._heads(record, op)
            case NativeAttention():
                self._attention(record, op)
            case NativePointwise():
                self._pointwise(record, op)
            case NativeTakeRows():
                record.kind = self._lib.QUIRE_OP_TAKE_ROWS
                self._view(record.u.take_rows.x, op.x)
                self._view(record.u.take_rows.out, op.out)
            case NativeLogits():
                self._logits(record, op)
            case _:
                raise BackendError(f"{type(op).__name__} has no record")

    def _view(self, view: Any, value: Value | None, dim: int | None = None) -> None:
        if value is None:
            view.offset = -1
            return
        place = self._places[value]
        view.offset = place.offset_bytes
        view.stride = place.stride
        view.dim = place.dim if dim is None else dim
        view.dtype = getattr(self._lib, _DTYPES[place.dtype])

    def _kv_place(self, slot: Any, layer: int) -> None:
        place = self._kv_places[layer]
        slot.layer_group = place.group
        slot.slot = place.slot

    def _activation(self, name: str | None) -> int:
        code: int = getattr(self._lib, f"QUIRE_ACT_{_ACTIVATIONS[name]}")
        return code

    def _embed(self, record: Any, op: NativeEmbed) -> None:
        record.kind = self._lib.QUIRE_OP_EMBED
        embed = record.u.embed
        self._view(embed.out, op.out)
        # A tied head is looked up in its packed form: the table is not held twice.
        tied = op.table.name in self._head_names
        embed.matrix = self._load.matrix(op.table) if tied else -1
        embed.table = -1 if tied else self._load.table(op.table)
        embed.scale = op.scale

    def _positions(self, record: Any, op: NativePositions) -> None:
        record.kind = self._lib.QUIRE_OP_POSITIONS
        positions = record.u.positions
        self._view(positions.x, op.x)
        self._view(positions.out, op.out)
        positions.table = self._load.table(op.table)
        positions.offset = op.offset

    def _norm(self, record: Any, op: NativeNorm) -> None:
        record.kind = self._lib.QUIRE_OP_NORM
        norm = record.u.norm
        self._view(norm.x, op.x)
        self._view(norm.out, op.out)
        self._view(norm.residual, op.residual)
        norm.kind = self._lib.QUIRE_NORM_RMS if op.kind == "rms" else self._lib.QUIRE_NORM_LAYER
        norm.weight = self._load.vector(op.weight, plus=op.weight_offset)
        norm.bias = self._load.vector(op.bias)
        norm.eps = op.eps

    def _linear(self, record: Any, op: NativeLinear) -> None:
        record.kind = self._lib.QUIRE_OP_LINEAR
        linear = record.u.linear
        self._view(linear.x, op.x)
        self._view(linear.out, op.outs[0], sum(out.dim for out in op.outs))
        self._view(linear.residual, op.residual)
        linear.matrix = self._load.matrix(op.weight, glu=op.glu)
        linear.bias = self._load.vector(op.bias)
        linear.activation = self._activation(op.activation)
        linear.scale = op.scale

    def _heads(self, record: Any, op: NativeHeads) -> None:
        record.kind = self._lib.QUIRE_OP_HEADS
        heads = record.u.heads
        heads.num_parts = len(op.parts)
        heads.head_dim = op.head_dim
        if op.layer is not None:
            self._kv_place(heads.kv, op.layer)
        for slot, part in zip(heads.parts, op.parts, strict=False):
            self._part(slot, part)

    def _part(self, slot: Any, part: HeadsPart) -> None:
        self._view(slot.x, part.x)
        self._view(slot.out, part.out)
        slot.num_heads = part.num_heads
        slot.norm = self._load.vector(part.norm, plus=part.norm_offset)
        slot.eps = part.eps
        slot.rope = self._load.rope(part.rotation)
        slot.target = getattr(self._lib, _TARGETS[part.target])

    def _attention(self, record: Any, op: NativeAttention) -> None:
        record.kind = self._lib.QUIRE_OP_ATTENTION
        attention = record.u.attention
        self._view(attention.q, op.q)
        self._view(attention.out, op.out)
        self._kv_place(attention.kv, op.layer)
        attention.num_heads = op.num_heads
        attention.scale = op.scale
        attention.softcap = op.softcap or 0.0
        attention.window = op.window or 0
        attention.activation_bits = op.activation_bits
        attention.taken_only = op.taken_only
        slopes = op.alibi_slopes
        attention.alibi = (
            -1 if slopes is None else self._load.constant(np.array(slopes, np.float32))
        )

    def _pointwise(self, record: Any, op: NativePointwise) -> None:
        record.kind = self._lib.QUIRE_OP_POINTWISE
        pointwise = record.u.pointwise
        self._view(pointwise.a, op.a)
        self._view(pointwise.b, op.b)
        self._view(pointwise.out, op.out)
        pointwise.kind = getattr(self._lib, f"QUIRE_POINTWISE_{op.kind.upper()}")
        pointwise.activation = self._activation(op.activation)
        pointwise.factor = op.factor

    def _logits(self, record: Any, op: NativeLogits) -> None:
        record.kind = self._lib.QUIRE_OP_LOGITS
        logits = record.u.logits
        self._view(logits.x, op.x)
        logits.matrix = self._load.matrix(op.weight)
        logits.bias = self._load.vector(op.bias)
        logits.scale = op.scale
        logits.softcap = op.softcap or 0.0
