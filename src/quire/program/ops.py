"""The ops of a program, each a frozen record over Values [T, dim] and Params.

Legend: T tokens in the step, N query heads, K kv heads, H head dim, D hidden,
F feed-forward, V vocabulary. A row of any output depends only on the same row of
the inputs, except in `Attention` (which reads earlier tokens of the same request)
and `TakeRows`. What each op computes is fixed by `backends/reference`.

Fields named `out`/`outs` are written, every other Value field is read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from quire.program.values import ActivationBits, Param, Value

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all ops: lists the values and weights that an op reads and writes."""

    def inputs(self) -> tuple[Value, ...]:
        """The values read, in field order."""
        return _collect(self, Value, written=False)

    def outputs(self) -> tuple[Value, ...]:
        """The values written, in field order."""
        return _collect(self, Value, written=True)

    def params(self) -> tuple[Param, ...]:
        """The weights used, in field order."""
        return _collect(self, Param, written=None)


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[t] = table[token_ids[t]] * scale; table is [V, D]."""

    out: Value
    table: Param
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LearnedPositions(Op):
    """out[t] = x[t] + table[positions[t] + offset]; table is [P, D]. OPT has offset 2."""

    x: Value
    out: Value
    table: Param
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset).

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
    """

    x: Value
    out: Value
    weight: Param
    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, variance over D not D-1.

    `weight` and `bias` may be missing (OPT without affine norms).
    """

    x: Value
    out: Value
    weight: Param | None
    bias: Param | None
    eps: float


@dataclass(frozen=True, slots=True)
class HeadNorm(Op):
    """RmsNorm over each head's H numbers of x [T, heads * H]; weight is [H]. Qwen3's q/k norm.

    As there, `weight_offset` is added to the weight (Gemma 3).
    """

    x: Value
    out: Value
    weight: Param
    eps: float
    num_heads: int
    head_dim: int
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """concat(outs) = x @ weight.T + bias; weight is [N, K], N the sum of the outs' dims.

    Several outs are slices of one product: q|k|v or gate|up share one pass over x.
    """

    x: Value
    outs: tuple[Value, ...]
    weight: Param
    bias: Param | None = None


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotary embedding of x [T, heads * H] at the tokens' positions, on the first 2*len(inv_freq)
    of each head's H numbers; the others pass through.

    Angle = position * inv_freq[i]; cos and sin are multiplied by `scale` (yarn's mscale).
    Not interleaved: pairs are (i, i + len(inv_freq)), as Hugging Face stores them;
    interleaved: (2i, 2i + 1). Source: Su et al. 2021, "RoFormer", section 3.4.2.
    """

    x: Value
    out: Value
    num_heads: int
    head_dim: int
    inv_freq: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Writes this step's k and v to layer `layer` of the paged KV cache, then attends.

    q is [T, N * H]; k and v are [T, K * H]; out is [T, N * H]. Query head n reads kv
    head n * K // N. A token at position p sees positions max(0, p - window + 1) .. p of its own
    request (`window` None: all). scores = q.k * scale, then `softcap * tanh(scores / softcap)`
    if set, plus alibi_slopes[n] * (key position - p) if set.

    `activation_bits` 8: q and the softmax weights are 8-bit activations, like those of the linears
    around them. With an 8-bit cache a backend may then round a token's q of a head, and its softmax
    weights for 64 positions, to bytes with a scale. 16: they have at least bfloat16's precision,
    whatever the cache.
    """

    q: Value
    k: Value
    v: Value
    out: Value
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    activation_bits: ActivationBits = 16


@dataclass(frozen=True, slots=True)
class Glu(Op):
    """out = act(gate) * up, elementwise."""

    gate: Value
    up: Value
    out: Value
    act: Activation


@dataclass(frozen=True, slots=True)
class Act(Op):
    """out = act(x), elementwise."""

    x: Value
    out: Value
    act: Activation


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out = a + b."""

    a: Value
    b: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """out = x * factor."""

    x: Value
    out: Value
    factor: float


@dataclass(frozen=True, slots=True)
class TakeRows(Op):
    """Keeps only the rows that need logits: out is [L, dim], L = len(batch.logits_rows)."""

    x: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Logits(Op):
    """The program's result: float32 logits [L, V] = x @ weight.T * scale, then soft cap if set."""

    x: Value
    out: Value
    weight: Param
    bias: Param | None = None
    scale: float = 1.0
    softcap: float | None = None


def _collect(op: Op, kind: type, written: bool | None) -> tuple:  # type: ignore[type-arg]
    found = []
    for name in (field.name for field in fields(op)):
        if written is not None and (name in ("out", "outs")) is not written:
            continue
        field_value = getattr(op, name)
        for item in field_value if isinstance(field_value, tuple) else (field_value,):
            if isinstance(item, kind):
                found.append(item)
    return tuple(found)
