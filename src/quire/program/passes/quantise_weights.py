"""Sets the weight format of a program's matrices, and the bits of its activations.

Changes the linears, the experts and the head, and an embedding table that is also the head. Other
embedding tables, vectors, position tables and exact linears stay as they are, and so do matrices
that are quantised in the checkpoint. 8-bit activations also apply to attention. The values change
by the rounding of the format: see `docs/quantisation.md`.
"""

from __future__ import annotations

from dataclasses import fields, replace

from quire.program.ops import Attention, Experts, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import GroupedFormat, Param, WeightFormat, activation_bits


def quantise_weights(program: Program, weight_format: WeightFormat) -> Program:
    """The program with every matrix of a linear or the head in `weight_format`."""
    bits = activation_bits(weight_format)
    matrices = {param.name for op in program.ops for param in _matrices(op)}

    def converted(op: Op) -> Op:
        if isinstance(op, Attention):
            return replace(op, activation_bits=bits)
        changes = {
            field.name: replace(param, format=weight_format)
            for field in fields(op)
            if isinstance(param := getattr(op, field.name), Param)
            and param.name in matrices
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
