"""Attention over latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.backends.cpu.lowering.native_op import KVLayer, NativeOp
from quire.program import OpPlace, Value


@dataclass(frozen=True, slots=True)
class NativeLatent(NativeOp):
    """Writes k to the cache, then attends. All heads of q read one head of k, whose first
    `value_dim` numbers are the values too: q is [T, num_heads * k.dim], out is
    [T, num_heads * value_dim]. A slot holds [block_size][dim] numbers, rounded up as a head of K
    is. `taken_only`: as of `NativeAttention`."""

    in_float32: ClassVar[bool] = False
    q: Value
    k: Value
    out: Value
    kv: KVLayer
    num_heads: int
    value_dim: int
    scale: float
    taken_only: bool

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name, reads_cache=True)
