"""`with_shipped_formats`: a program with the formats in which its checkpoint holds the matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import groupby

from quire.errors import UnsupportedModelError
from quire.models.shipped.block_formats import BlockFormats
from quire.models.shipped.quantised import Shipped
from quire.program.ops import Experts, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import GroupedFormat, Param

Format = GroupedFormat | None


def with_shipped_formats(program: Program, shipped: Shipped | BlockFormats) -> Program:
    """The program with the format of each matrix that the checkpoint holds quantised.

    Matrices that are multiplied as one and held in unlike formats become linears of their own.
    """
    if any(isinstance(op, Experts) for op in program.ops):
        raise UnsupportedModelError(
            "quantization_config: experts that are quantised in the checkpoint are not supported; "
            "use the unquantised one, with quantization='int4' if it should be small"
        )
    matrices = {op.weight.name for op in program.ops if isinstance(op, Linear | Logits)}
    ops = [new for op in program.ops for new in _converted(op, matrices, shipped.format_of)]
    return replace(program, ops=tuple(ops))


def _converted(op: Op, matrices: set[str], format_of: Callable[[str], Format]) -> Sequence[Op]:
    formats: dict[str, list[Format]] = {
        param.name: [format_of(part.name) for part in param.parts]
        for param in op.params()
        if param.name in matrices
    }
    if isinstance(op, Linear) and len(set(formats[op.weight.name])) > 1:
        return _split(op, formats[op.weight.name])
    changes = {
        field.name: replace(param, format=found[0])
        for field in fields(op)
        if isinstance(param := getattr(op, field.name), Param)
        and (found := formats.get(param.name))
        and found[0] is not None
    }
    return [replace(op, **changes) if changes else op]


def _split(op: Linear, formats: list[Format]) -> list[Linear]:
    """A linear for each run of outs of one format."""
    dims = [out.dim for out in op.outs]
    params = [param for param in (op.weight, op.bias) if param is not None]
    if any([part.slot_shape[0] for part in param.parts] != dims for param in params):
        names = ", ".join(part.name for part in op.weight.parts)
        raise UnsupportedModelError(
            f"quantization_config holds {names} in unlike formats, and they are not multiplied one "
            "by one here; use a checkpoint that treats them alike"
        )
    linears = []
    for wanted, places in groupby(range(len(dims)), key=lambda i: formats[i]):
        first, *rest = places
        span = slice(first, first + 1 + len(rest))
        weight = _part(op.weight, op, span)
        linears.append(
            replace(
                op,
                outs=op.outs[span],
                weight=weight if wanted is None else replace(weight, format=wanted),
                bias=None if op.bias is None else _part(op.bias, op, span),
            )
        )
    return linears


def _part(param: Param, op: Linear, span: slice) -> Param:
    """Some rows of a slot, named by their outs: of layers.0.qkv.weight layers.0.q_k.weight."""
    scope, _, kind = param.name.rpartition(".")
    scope = scope.rpartition(".")[0]
    outs = "_".join(out.name.rpartition(".")[2] for out in op.outs[span])
    rows = sum(out.dim for out in op.outs[span])
    name = ".".join(word for word in (scope, outs, kind) if word)
    return replace(param, name=name, shape=(rows, *param.shape[1:]), parts=param.parts[span])
