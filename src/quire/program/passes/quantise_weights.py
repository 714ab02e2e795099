"""Sets the weight format of a program's matrices, and the bits of its activations.

Changes the linears, the experts and the head, and an embedding table that is also the head. Other
embedding tables, vectors, position tables and exact linears stay as they are, and so do matrices
that are quantised in the checkpoint. The head has 8 bits unless the name of the format says
otherwise, because 4 bits there cost as much quality as in all other matrices together. 8-bit
activations also apply to attention. The values change by the rounding of the format: see
`docs/quantisation.md`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal, cast

from quire.config.quantization import HEAD_4, Quantization
from quire.program.ops import Attention, Experts, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import GroupedFormat, Param, WeightFormat, activation_bits

_HEADS: dict[WeightFormat, WeightFormat] = {"int4": "int8", "int4_w4a8": "int8_w8a8"}
"""Formats of the head, where it is not that of the other matrices."""


def quantise_weights(program: Program, quantization: Quantization | Literal["dense"]) -> Program:
    """The program with every matrix of a linear or the head in the format of this name."""
    weight_format = cast(WeightFormat, quantization.removesuffix(HEAD_4))
    of_head = _HEADS.get(weight_format) if quantization == weight_format else None
    bits = activation_bits(weight_format)
    formats = {param.name: weight_format for op in program.ops for param in _matrices(op)}
    if of_head is not None:
        heads = (param for op in program.ops if isinstance(op, Logits) for param in _matrices(op))
        formats |= {param.name: of_head for param in heads}

    def converted(op: Op) -> Op:
        if isinstance(op, Attention):
            return replace(op, activation_bits=bits)
        changes = {
            field.name: replace(param, format=formats[param.name])
            for field in fields(op)
            if isinstance(param := getattr(op, field.name), Param)
            and param.name in formats
            and not isinstance(param.format, GroupedFormat)
        }
        return replace(op, **changes) if changes else op

    return replace(program, ops=tuple(converted(op) for op in program.ops))


def _matrices(op: Op) -> tuple[Param, ...]:
    """The weights of an op that are held in the format."""
    if isinstance(op, Experts):
        return (op.gate_up, op.down)
    is_rounded = isinstance(op, Logits) or (isinstance(op, Linear) and not op.exact)
    return op.params()[:1] if is_rounded else ()
