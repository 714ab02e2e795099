"""A program with a few layers of each kind, which is timed in place of the whole model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from quire.program.ops import Attention, Op
from quire.program.printer import format_layer, group_by_layer
from quire.program.program import Program, shares_layer
from quire.program.values import Value


@dataclass(frozen=True, slots=True)
class FewerLayers:
    """A program, and for each of its layers the number of such layers in the whole program."""

    program: Program
    stands_for: Mapping[int, float]
    """By the layer's number in the whole program, as in names: `layers.3.`."""


def with_fewer_layers(program: Program, num_alike: int) -> FewerLayers:
    """The first `num_alike` layers of each kind, in their order. Kinds differ in ops, shapes or
    formats. A layer reads the output of the previous layer that is kept.

    All layers are kept of a model with an encoder, and if a layer reads values of a layer other
    than the previous one. K and V that several layers read come from the last kept layer that
    writes K and V of the same kind.
    """
    if program.module is not None or program.num_sources:
        return FewerLayers(program, {})
    groups = group_by_layer(program.ops)
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for layer, ops in groups:
        if layer is not None:
            kinds[tuple(format_layer(ops, layer))].append(layer)
    stands_for = {
        layer: len(layers) / min(num_alike, len(layers))
        for layers in kinds.values()
        for layer in layers[:num_alike]
    }
    kept = [(layer, ops) for layer, ops in groups if layer is None or layer in stands_for]
    joined = _joined(kept)
    if joined is None:
        return FewerLayers(program, dict.fromkeys((i for i, _ in groups if i is not None), 1.0))
    return FewerLayers(replace(program, ops=joined), stands_for)


def _joined(groups: Sequence[tuple[int | None, Sequence[Op]]]) -> tuple[Op, ...] | None:
    """The ops of the groups, connected to values that are still written; None if that is not
    possible."""
    written: dict[str, Value] = {}
    before: int | None = None  # the last layer that is complete
    writers: list[Op] = []
    ops: list[Op] = []
    for layer, group in groups:
        for op in group:
            names: dict[str, Value] = {}
            for value in op.inputs():
                found = written.get(value.name) or written.get(_moved(value.name, before))
                if found is None or found.dim != value.dim:
                    return None
                names[value.name] = found
            op = _renamed(op, names)
            if op.memories():
                op = replace(op, layer=len(writers))  # type: ignore[call-arg]
                writers.append(op)
            elif isinstance(op, Attention) and op.layer is not None:
                alike = [i for i, writer in enumerate(writers) if shares_layer(writer, op)]
                if not alike:
                    return None
                op = replace(op, layer=alike[-1])
            written |= {value.name: value for value in op.outputs()}
            ops.append(op)
        before = layer if layer is not None else before
    return tuple(ops)


def _moved(name: str, layer: int | None) -> str:
    """A name such as `layers.7.sum`, moved to another layer."""
    first, _, rest = name.partition(".")
    return f"layers.{layer}.{rest.partition('.')[2]}" if first == "layers" else ""


def _renamed(op: Op, names: Mapping[str, Value]) -> Op:
    changed = {
        field.name: names[value.name]
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Value) and value.name in names
    }
    return replace(op, **changed)
