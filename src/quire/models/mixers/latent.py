"""Multi-head latent attention: DeepSeek V2 and V3, GLM-4.7-Flash, MiniCPM3, Kimi.

K and V of all heads are products of one small row of a token, its latent. The matrices of these
products are moved to the other side, so that attention reads latents alone: q times the matrix of
keys is compared with latents, and the weighted latents are multiplied with the matrix of values.
Prompts are computed in the same way, because another way would give other bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.mixers.base import Mixer
from quire.program import Builder, HeadLayout, Out, Rotary, Tensor, Value


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    """Numbers of a head: `nope_dim` without and `rope_dim` with rotary embedding in q and k, and
    `value_dim` in v."""

    num_heads: int
    q_rank: int | None
    """Width of q's own latent; None: q has none."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rotary: Rotary | None
    bias: bool = False
    eps: float = 1e-6
    heads_are_apart: bool = False
    """Whether each head has a tensor of keys, transposed, and one of values (GGUF files)."""
    prefix: str = "self_attn."
    latent_scale: float = 1.0
    """Factor on a token's latent (LongCat)."""

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, heads, rank = layer + self.prefix, self.num_heads, self.kv_rank
        q_nope, q_rope = self._queries(builder, x, prefix)
        latent, k_rope = self._latents(builder, x, prefix)
        if self.rotary is not None:
            q_rope = builder.rope(q_rope, self.rope_dim, self.rotary, "q_rope")
            k_rope = builder.rope(k_rope, self.rope_dim, self.rotary, "k_rope")
        of_keys = self._parts(prefix, is_keys=True)
        absorbed = builder.head_linear(q_nope, of_keys, (heads, rank, self.nope_dim), "q_latent")
        q = builder.join_heads(absorbed, q_rope, heads, "q")
        k = builder.join_heads(latent, k_rope, 1, "k")
        layout = HeadLayout(heads, 1, rank + self.rope_dim)
        mixed = builder.attention(q, k, None, layout, scale=self.scale, latent_dim=rank)
        of_values = self._parts(prefix, is_keys=False)
        out = builder.head_linear(mixed, of_values, (heads, self.value_dim, rank), "values")
        return builder.linear(out, f"{prefix}o_proj", x.dim, bias=self.bias, hint="o")

    def _queries(self, builder: Builder, x: Value, prefix: str) -> list[Value]:
        """Return the parts of q without and with rotary embedding, of all heads."""
        name = f"{prefix}q_proj"
        if self.q_rank is not None:
            x = builder.linear(x, f"{prefix}q_a_proj", self.q_rank, bias=self.bias, hint="q_a")
            x = builder.rms_norm(x, f"{prefix}q_a_layernorm.weight", self.eps, "q_a_norm")
            name = f"{prefix}q_b_proj"
        size, total = self.nope_dim + self.rope_dim, 0
        parts = (("q_nope", 0, self.nope_dim), ("q_pe", self.nope_dim, self.rope_dim))
        total = self.num_heads * size
        outs = [
            Out(
                hint, name, self.num_heads * count, total=total,
                rows=tuple((head * size + first, count) for head in range(self.num_heads)),
            )
            for hint, first, count in parts
        ]  # fmt: skip
        return list(builder.linears(x, outs, hint="q"))

    def _latents(self, builder: Builder, x: Value, prefix: str) -> tuple[Value, Value]:
        """Return a token's latent and the part of k with rotary embedding."""
        sizes = [("kv_a", self.kv_rank), ("k_pe", self.rope_dim)]
        outs = Out.stacked(f"{prefix}kv_a_proj_with_mqa", sizes, self.bias)
        latent, k_rope = builder.linears(x, outs, hint="kv_a")
        norm = f"{prefix}kv_a_layernorm.weight"
        latent = builder.rms_norm(latent, norm, self.eps, "latent")
        if self.latent_scale != 1.0:
            latent = builder.scale(latent, self.latent_scale)
        return latent, k_rope

    def _parts(self, prefix: str, *, is_keys: bool) -> list[Tensor]:
        """Return each head's matrix of keys, transposed, or of values."""
        if self.heads_are_apart:
            own = (self.kv_rank, self.nope_dim) if is_keys else (self.value_dim, self.kv_rank)
            part = "k" if is_keys else "v"
            return [
                Tensor(f"{prefix}{part}_b_proj.{head}.weight", own)
                for head in range(self.num_heads)
            ]
        size = self.nope_dim + self.value_dim
        shape = (self.num_heads * size, self.kv_rank)
        first, count = (0, self.nope_dim) if is_keys else (self.nope_dim, self.value_dim)
        name = f"{prefix}kv_b_proj.weight"
        return [
            Tensor(name, shape, transposed=is_keys, rows=((head * size + first, count),))
            for head in range(self.num_heads)
        ]
