"""The native ops, one class each. Importing them registers their implementations of `lower`.

The kernels, with their entries in the executor's table, are in `native/src/ops` and
`native/src/attention`.
"""

from quire.backends.cpu.lowering.ops.attention import NativeAttention
from quire.backends.cpu.lowering.ops.exchange import NativeCopy, NativeGather, NativePass
from quire.backends.cpu.lowering.ops.experts import NativeExperts, NativeRoute
from quire.backends.cpu.lowering.ops.heads import HeadsPart, NativeHeads
from quire.backends.cpu.lowering.ops.latent import NativeHeadLinear, NativeJoin, NativeLatent
from quire.backends.cpu.lowering.ops.linear import NativeLinear, NativeLogits
from quire.backends.cpu.lowering.ops.lookups import NativeEmbed, NativePositions, NativeTakeRows
from quire.backends.cpu.lowering.ops.norm import NativeNorm
from quire.backends.cpu.lowering.ops.pointwise import NativePointwise
from quire.backends.cpu.lowering.ops.recurrent import (
    NativeConv,
    NativeDelta,
    NativeMamba,
    NativeSsd,
)
from quire.backends.cpu.lowering.ops.results import NativeMean, NativeVectors

__all__ = [
    "HeadsPart",
    "NativeAttention",
    "NativeConv",
    "NativeCopy",
    "NativeDelta",
    "NativeEmbed",
    "NativeExperts",
    "NativeGather",
    "NativeHeadLinear",
    "NativeHeads",
    "NativeJoin",
    "NativeLatent",
    "NativeLinear",
    "NativeLogits",
    "NativeMamba",
    "NativeMean",
    "NativeNorm",
    "NativePass",
    "NativePointwise",
    "NativePositions",
    "NativeRoute",
    "NativeSsd",
    "NativeVectors",
    "NativeTakeRows",
]
