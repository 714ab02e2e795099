"""`DecoderSpec`: the values in which families of decoders differ. `decoder` makes programs of them.

A family reads its config.json into these records (`reading`); most need no code of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.experts import MoeSpec
from quire.program import Activation, HeadLayout, NormKind, Rotary


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The norms over whole rows, all alike."""

    eps: float
    kind: NormKind = "rms"
    offset: float = 0.0
    """Added to the weight (Gemma: 1)."""
    has_weight: bool = True
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Norms of q and k without bias."""

    over: Literal["head", "row"] = "head"
    """Each head by itself, or all heads of a token together."""
    kind: NormKind = "rms"
    weights: Literal["shared", "stacked", "listed", "none"] = "shared"
    """[H] for all heads; [heads, H]; a tensor [H] for each head; no weight."""
    after_rope: bool = False
    rotated_only: bool = False
    """There are none in layers that do not rotate q and k (Llama 4)."""


@dataclass(frozen=True, slots=True)
class PositionScaling:
    """A factor on q that grows with the position, see the op `PositionScale`."""

    beta: float
    period: int
    shift: int = 0
    unrotated_only: bool = False
    """There is none in layers that rotate q and k (Llama 4)."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention, the same in all layers but for windows and rotary embeddings."""

    heads: HeadLayout
    windows: tuple[int | None, ...]
    """For each layer, the positions that a token sees; None: all."""
    rotaries: tuple[Rotary | None, ...]
    """For each layer; None: its q and k are not rotated."""
    is_chunked: bool = False
    """Windows are chunks: a token sees those of its own, see the op `Attention`."""
    qkv_bias: bool = False
    out_bias: bool = False
    fused: Literal["split", "concat", "grouped"] = "split"
    """q, k and v in a tensor each; in one, one after the other; or in one, the query heads of a kv
    head before its k and its v, group by group."""
    qk_norm: QkNorm | None = None
    clip_qkv: float | None = None
    """Bound of the numbers of q, k and v, behind the norms of q and k."""
    q_scaling: PositionScaling | None = None
    scale: float | None = None
    """Factor on q.k; None: 1 / sqrt(H)."""
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    has_sinks: bool = False


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """The feed-forward block."""

    size: int
    activation: Activation | Literal["xielu"]
    gated: bool = True
    bias: bool = False
    fused: bool = False
    """Gate and up are one tensor, the gate first."""


@dataclass(frozen=True, slots=True)
class LayerNames:
    """What a layer's tensors are called, behind the layer's prefix.

    The norms say where norms are: before a block or on what it adds. None: there is none.
    """

    attention_norm: str | None = "input_layernorm"
    attention_out_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_out_norm: str | None = None
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str = "self_attn.qkv_proj"
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str = "mlp.gate_up_proj"
    down: str = "mlp.down_proj"
    xielu: str = "mlp.act_fn"


@dataclass(frozen=True, slots=True)
class Names:
    """What the checkpoint calls its tensors."""

    root: str = "model."
    """Prefix of all but the head."""
    embed: str = "embed_tokens"
    embed_norm: str | None = None
    layers: str = "layers"
    final_norm: str = "norm"
    head: str = "lm_head"
    layer: LayerNames = LayerNames()


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """All values that the program of a decoder depends on."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    norm: NormSpec
    attention: AttentionSpec
    mlp: MlpSpec
    tie_word_embeddings: bool
    names: Names = Names()
    parallel: bool = False
    """Attention and MLP read the same row; without a norm of its own, the MLP reads attention's."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on the outputs of attention and MLP before they are added (Granite)."""
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    head_bias: bool = False
    experts: tuple[MoeSpec | None, ...] = ()
    """For each layer, its experts in place of the MLP; empty: no layer has any."""
