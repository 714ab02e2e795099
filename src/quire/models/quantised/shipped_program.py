"""`with_shipped_formats`: sets the checkpoint's matrix formats in a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import groupby

from quire.errors import UnsupportedModelError
from quire.models.quantised.block_formats import BlockFormats
from quire.models.quantised.shipped_linears import Shipped
from quire.program.ops import Experts, Linear, Logits, Op
from quire.program.program import Program
from quire.program.values import GroupedFormat, Param

Format = GroupedFormat | None


def with_shipped_formats(program: Program, shipped: Shipped | BlockFormats) -> Program:
    """Return the program with the formats of the checkpoint's quantised matrices.

    Matrices that are multiplied together but have different formats are split into separate
    linears.
    """
    matrices = {param.name for op in program.ops for param in _matrices(op, shipped)}
    ops = [new for op in program.ops for new in _converted(op, matrices, shipped.format_of)]
    return replace(program, ops=tuple(ops))


def _matrices(op: Op, shipped: Shipped | BlockFormats) -> tuple[Param, ...]:
    """Return the parameters of an op that may be quantised; in MXFP4 only the experts. Routers of
    GGUF files are expanded."""
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
    """Return one linear for each run of outputs with the same format."""
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
    """Return the error; it names the first matrix of each format, because there may be many
    experts."""
    firsts: dict[Format, str] = {}
    for part, found in zip(param.parts, formats, strict=True):
        firsts.setdefault(found, part.name)
    held = ", ".join(f"{name} ({found or 'as numbers'})" for found, name in firsts.items())
    return UnsupportedModelError(
        f"quantization_config has {held} in different formats, which cannot be multiplied "
        "separately; use a checkpoint with one format for them, or for a GGUF file "
        "quantization='int8' or 'int4', which round its numbers again"
    )


def _part(param: Param, op: Linear, span: slice) -> Param:
    """Return some rows of a parameter, named by their outputs: layers.0.q_k.weight of
    layers.0.qkv.weight."""
    scope, _, kind = param.name.rpartition(".")
    scope = scope.rpartition(".")[0]
    outs = "_".join(out.name.rpartition(".")[2] for out in op.outs[span])
    rows = sum(out.dim for out in op.outs[span])
    name = ".".join(word for word in (scope, outs, kind) if word)
    return replace(param, name=name, shape=(rows, *param.shape[1:]), parts=param.parts[span])
