"""Sets the weight format of the matrices that a program multiplies by, and what activations keep.

Linears and the head; an embedding table that is also the head is quantised with it, any other
stays as it is, and so do vectors and position tables. Where the format has activations of 8 bits,
so has attention. The values change by the rounding of the format: `docs/quantisation.md` has how
much.
"""

from __future__ import annotations

from dataclasses import fields, replace

from quire.program.ops import Attention, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import Param, WeightFormat, activation_bits


def quantise_weights(program: Program, weight_format: WeightFormat) -> Program:
    """The program with every matrix that is multiplied held in `weight_format`."""
    bits = activation_bits(weight_format)
    matrices = {op.weight.name for op in program.ops if isinstance(op, Linear | Logits)}

    def converted(op: Op) -> Op:
        if isinstance(op, Attention):
            return replace(op, activation_bits=bits)
        changes = {
            field.name: replace(held, format=weight_format)
            for field in fields(op)
            if isinstance(held := getattr(op, field.name), Param) and held.name in matrices
        }
        return replace(op, **changes) if changes else op

    return replace(program, ops=tuple(converted(op) for op in program.ops))
