"""`OpPlace`: identifies an op of a model in messages.

The name is the one that `quire explain` prints: the op's weight, or the value that it writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.program.ops import Logits, Op

_NAME = re.compile(r"(?:layers\.(\d+)\.)?(.*?)(?:\.weight|\.part|\.own)?")


@dataclass(frozen=True, slots=True)
class OpPlace:
    """One op of a program, or a backend's fusion of several ops."""

    layer: int | None
    """None for ops before or after the layers."""
    name: str
    reads_cache: bool = False
    """Whether it also reads K/V of earlier steps."""

    @classmethod
    def named(cls, name: str, *, reads_cache: bool = False) -> OpPlace:
        """The place with the name of a weight slot or a value, such as `layers.3.qkv.weight`."""
        match = _NAME.fullmatch(name)
        layer, rest = match.groups() if match else (None, name)
        return cls(None if layer is None else int(layer), rest, reads_cache)

    def __str__(self) -> str:
        return self.name if self.layer is None else f"layer {self.layer}, {self.name}"


LOGITS = OpPlace(None, "logits")


def place_of(op: Op) -> OpPlace:
    """The place of an op."""
    if isinstance(op, Logits):
        return LOGITS
    params = op.params()
    name = params[0].name if params else (op.outputs() or op.inputs())[0].name
    return OpPlace.named(name, reads_cache=op.rows == "request")
