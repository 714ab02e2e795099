"""A program as text, for `quire explain`: one line per op, repeated layers folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from quire.program.ops import Op
from quire.program.program import Program
from quire.program.values import Param, Value

_LAYER = re.compile(r"\blayers\.(\d+)\.")


def format_program(program: Program, *, fold: bool = True) -> str:
    """The whole program. `fold`: adjacent layers that differ only in names are printed once."""
    lines = [f"program {program.name}"]
    groups = group_by_layer(program.ops) if fold else [(None, list(program.ops))]
    index = 0
    while index < len(groups):
        layer, ops = groups[index]
        text = format_layer(ops, layer)
        repeats = 1
        if layer is not None:
            while index + repeats < len(groups) and text == format_layer(
                *groups[index + repeats][::-1]
            ):
                repeats += 1
            last = layer + repeats - 1
            lines.append(
                f"  layers {layer}..{last} x{repeats}" if repeats > 1 else f"  layer {layer}"
            )
        lines.extend(f"  {line}" if layer is None else f"    {line}" for line in text)
        index += repeats
    return "\n".join(lines)


def group_by_layer(ops: Sequence[Op]) -> list[tuple[int | None, list[Op]]]:
    """Runs of ops of one layer, with its number; None for ops outside layers."""
    groups: list[tuple[int | None, list[Op]]] = []
    for op in ops:
        own = op.outputs() or op.inputs()
        match = _LAYER.match(own[0].name) if own else None
        layer = int(match[1]) if match else None
        if groups and groups[-1][0] == layer:
            groups[-1][1].append(op)
        else:
            groups.append((layer, [op]))
    return groups


def format_layer(ops: Sequence[Op], layer: int | None) -> list[str]:
    """The ops' lines; in a layer, names are relative to it and its inputs are `%in`, `%in2`..."""
    if layer is None:
        return [_format_op(op) for op in ops]
    own = f"layers.{layer}."
    outside = dict.fromkeys(v for op in ops for v in op.inputs() if not v.name.startswith(own))
    lines = [_format_op(op, skip="layer") for op in ops]
    for number, value in enumerate(outside, start=1):
        short = "%in" if number == 1 else f"%in{number}"
        lines = [re.sub(rf"{re.escape(str(value))}(?![\w.])", short, line) for line in lines]
    return [line.replace(own, "") for line in lines]


def _format_op(op: Op, skip: str = "") -> str:
    """`%q[2048] %k[1024] = linear(%norm, qkv.weight[3072x1024])`; the field `skip` is left out."""
    outs = " ".join(f"{value}[{value.dim}]" for value in op.outputs())
    arguments = []
    for field in fields(op):
        value = getattr(op, field.name)
        if field.name in ("out", "outs", skip) or value is None or value == field.default:
            continue
        is_name = isinstance(value, Value | Param)
        arguments.append(str(value) if is_name else f"{field.name}={_format_number(value)}")
    call = f"{snake_case(type(op).__name__)}({', '.join(arguments)})"
    return f"{outs} = {call}" if outs else call


def _format_number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple) and value and isinstance(value[0], Value):
        return " ".join(map(str, value))
    if isinstance(value, tuple):
        kinds = {Param: "weights", Op: "layers"}
        what = [text for kind, text in kinds.items() if value and isinstance(value[0], kind)]
        return f"<{len(value)} {''.join(what) or 'numbers'}>"
    return str(value)


def snake_case(name: str) -> str:
    """The name of a class as that of a function: `soft_cap` for `SoftCap`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
