"""`with_shipped_formats`: a program with the formats in which its checkpoint holds the matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import groupby

from quire.errors import UnsupportedModelError
from quire.models.quantised.block_formats import BlockFormats
from quire.models.quantised.shipped import Shipped
from quire.program.ops import Experts, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import GroupedFormat, Param

Format = GroupedFormat | None


def with_shipped_formats(program: Program, shipped: Shipped | BlockFormats) -> Program:
    """The program with the format of each matrix that the checkpoint holds quantised.

    Matrices that are multiplied as one and held in unlike formats become linears of their own.
    """
    matrices = {param.name for op in program.ops for param in _matrices(op, shipped)}
    ops = [new for op in program.ops for new in _converted(op, matrices, shipped.format_of)]
    return replace(program, ops=tuple(ops))


def _matrices(op: Op, shipped: Shipped | BlockFormats) -> tuple[Param, ...]:
    """Those that may be quantised; in MXFP4 the experts' alone. Routers of GGUF files are expanded,
    if they are in blocks at all."""
    if isinstance(op, Experts):
        return (op.gate_up, op.down)
    if isinstance(op, Linear) and op.exact and isinstance(shipped, BlockFormats):
        return ()
    is_multiplied = isinstance(op, Linear | Logits) and shipped.method != "mxfp4"
    return op.params()[:1] if is_multiplied else ()


def _converted(op: Op, matrices: set[str], format_of: Callable[[str, int], Format]) -> Sequence[Op]:
    formats: dict[str, list[Format]] = {
        param.name: [format_of(part.name, part.slot_shape[-1]) for part in param.parts]
        for param in op.params()
        if param.name in matrices
    }
    for param in op.params():
        if len(set(formats.get(param.name, ()))) > 1:
            if isinstance(op, Linear):
                return _split(op, formats[op.weight.name])
            raise _unlike(param, formats[param.name])
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
        raise _unlike(op.weight, formats)
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


def _unlike(param: Param, formats: Sequence[Format]) -> UnsupportedModelError:
    """Names the first of each format: experts may be many."""
    firsts: dict[Format, str] = {}
    for part, found in zip(param.parts, formats, strict=True):
        firsts.setdefault(found, part.name)
    held = ", ".join(f"{name} ({found or 'as numbers'})" for found, name in firsts.items())
    return UnsupportedModelError(
        f"quantization_config holds {held} in unlike formats, and they are not multiplied one by "
        "one here; use a checkpoint that treats them alike, or of a GGUF file "
        "quantization='int8' or 'int4', which round its numbers again"
    )


def _part(param: Param, op: Linear, span: slice) -> Param:
    """Some rows of a slot, named by their outs: of layers.0.qkv.weight layers.0.q_k.weight."""
    scope, _, kind = param.name.rpartition(".")
    scope = scope.rpartition(".")[0]
    outs = "_".join(out.name.rpartition(".")[2] for out in op.outs[span])
    rows = sum(out.dim for out in op.outs[span])
    name = ".".join(word for word in (scope, outs, kind) if word)
    return replace(param, name=name, shape=(rows, *param.shape[1:]), parts=param.parts[span])
