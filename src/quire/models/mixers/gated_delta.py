"""The gated delta net of Qwen3-Next and Qwen3.5, and Kimi's delta attention: the same rule with a
decay for each channel of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.mixers.base import Mixer
from quire.program import Activation, Builder, Out, Tensor, Value


@dataclass(frozen=True, slots=True)
class GatedDeltaMixer(Mixer):
    """Value heads are several for each key head."""

    num_heads: int
    num_key_heads: int
    key_dim: int
    """Columns of a head's key; `value_dim` is that of its value."""
    value_dim: int
    conv_width: int
    eps: float
    activation: Activation
    qkvz_is_grouped: bool
    """Whether one tensor has q, k, v and z of each key head together (Qwen3-Next); else two have
    qkv and z."""
    ba_is_grouped: bool
    """The same of b and a."""
    is_tiled: bool = False
    """Whether head n reads key head n % K (GGUF files)."""
    prefix: str = "linear_attn."

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix = layer + self.prefix
        widths = self.num_key_heads * self.key_dim, self.num_heads * self.value_dim
        qkv, z = builder.linears(x, self._qkv_and_z(prefix), hint="in")
        b, a = builder.linears(x, self._b_and_a(prefix), hint="gates", exact=True)
        mixed = builder.causal_conv(
            qkv, f"{prefix}conv1d", self.conv_width,
            {"q": widths[0], "k": widths[0], "v": widths[1]}, bias=False, act=self.activation,
        )  # fmt: skip
        out = builder.gated_delta(
            mixed, a, b, num_heads=self.num_heads, num_key_heads=self.num_key_heads,
            a_log=Tensor(f"{prefix}A_log", (self.num_heads,)),
            dt_bias=Tensor(f"{prefix}dt_bias", (self.num_heads,)),
            is_tiled=self.is_tiled,
        )  # fmt: skip
        norm = Tensor(f"{prefix}norm.weight", (self.value_dim,))
        normed = builder.head_norm(out, [norm], self.eps, self.value_dim, "delta_norm")
        gated = builder.glu(z, normed, "silu")
        return builder.linear(gated, f"{prefix}out_proj", x.dim, bias=False, hint="o")

    def _qkv_and_z(self, prefix: str) -> list[Out]:
        keys, values = self.num_key_heads * self.key_dim, self.num_heads * self.value_dim
        if not self.qkvz_is_grouped:
            return [
                Out("qkv", f"{prefix}in_proj_qkv", 2 * keys + values),
                Out("z", f"{prefix}in_proj_z", values),
            ]
        own = values // self.num_key_heads
        sizes = (self.key_dim, self.key_dim, own, own)
        q, k, v, z = self._runs(sizes)
        total = 2 * (keys + values)
        name = f"{prefix}in_proj_qkvz"
        return [
            Out("qkv", name, 2 * keys + values, rows=q + k + v, total=total),
            Out("z", name, values, rows=z, total=total),
        ]

    def _b_and_a(self, prefix: str) -> list[Out]:
        heads = self.num_heads
        if not self.ba_is_grouped:
            return [Out(hint, f"{prefix}in_proj_{hint}", heads) for hint in "ba"]
        own = heads // self.num_key_heads
        rows = zip("ba", self._runs((own, own)), strict=True)
        name = f"{prefix}in_proj_ba"
        return [Out(hint, name, heads, rows=runs, total=2 * heads) for hint, runs in rows]

    def _runs(self, sizes: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
        """Return the rows of each part, of which every key head has its own."""
        total, firsts = sum(sizes), [sum(sizes[:place]) for place in range(len(sizes))]
        return [
            tuple((head * total + first, size) for head in range(self.num_key_heads))
            for first, size in zip(firsts, sizes, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class KimiDeltaMixer(Mixer):
    """q, k and v have heads of one width. The decay and the gate of the output are products of
    two small matrices each."""

    num_heads: int
    head_dim: int
    conv_width: int
    eps: float
    activation: Activation
    prefix: str = "self_attn."

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, width = layer + self.prefix, self.num_heads * self.head_dim
        outs = [Out(hint, f"{prefix}{hint}_proj", width) for hint in "qkv"]
        q, k, v = builder.linears(x, outs, hint="qkv")
        qkv = builder.join_heads(builder.join_heads(q, k, 1, "qk"), v, 1, "qkv")
        mixed = builder.causal_conv(
            qkv, [f"{prefix}{hint}_conv1d" for hint in "qkv"], self.conv_width,
            {"q": width, "k": width, "v": width}, bias=False, act=self.activation,
        )  # fmt: skip
        a = self._small_product(builder, x, prefix, "f")
        b = builder.linear(x, f"{prefix}b_proj", self.num_heads, bias=False, hint="b", exact=True)
        out = builder.gated_delta(
            mixed, a, b, num_heads=self.num_heads, num_key_heads=self.num_heads,
            a_log=Tensor(f"{prefix}A_log", (1, 1, self.num_heads, 1)),
            dt_bias=Tensor(f"{prefix}dt_bias", (width,)),
        )  # fmt: skip
        norm = Tensor(f"{prefix}o_norm.weight", (self.head_dim,))
        normed = builder.head_norm(out, [norm], self.eps, self.head_dim, "delta_norm")
        gated = builder.sigmoid_gate(normed, self._small_product(builder, x, prefix, "g"))
        return builder.linear(gated, f"{prefix}o_proj", x.dim, bias=False, hint="o")

    def _small_product(self, builder: Builder, x: Value, prefix: str, name: str) -> Value:
        small = builder.linear(
            x, f"{prefix}{name}_a_proj", self.head_dim, bias=False, hint=f"{name}_a"
        )
        width = self.num_heads * self.head_dim
        return builder.linear(small, f"{prefix}{name}_b_proj", width, bias=False, hint=f"{name}_b")
