"""`DecoderSpec`: the values in which decoder families differ. `decoder` builds programs from them.

A family reads its config.json into these records (`reading`); most families need no other code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.experts import MoeSpec
from quire.models.mixers import Mixer
from quire.program import Activation, HeadLayout, NormKind, Rotary

LayerPart = Literal["both", "mixer", "mlp"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The norms over whole rows; all have the same form."""

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
    """Norm over each head, or over all heads of a token."""
    kind: NormKind = "rms"
    weights: Literal["shared", "stacked", "listed", "none"] = "shared"
    """[H] shared by all heads; [heads, H]; one tensor [H] per head; no weight."""
    after_rope: bool = False
    rotated_only: bool = False
    """Whether only layers with RoPE have the norms (Llama 4)."""


@dataclass(frozen=True, slots=True)
class PositionScaling:
    """A factor on q that grows with the position, see the op `PositionScale`."""

    beta: float
    period: int
    shift: int = 0
    unrotated_only: bool = False
    """Whether only layers without RoPE have the factor (Llama 4)."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention; only windows and rotary embeddings differ between layers."""

    heads: HeadLayout
    windows: tuple[int | None, ...]
    """Per layer, the number of positions that a token sees; None: all."""
    rotaries: tuple[Rotary | None, ...]
    """Per layer, the rotary embedding; None: no RoPE."""
    is_chunked: bool = False
    """Whether windows are chunks: a token sees only positions of its chunk, see the op
    `Attention`."""
    qkv_bias: bool = False
    out_bias: bool = False
    fused: Literal["split", "concat", "grouped"] = "split"
    """q, k and v in three tensors; concatenated in one; or in one, grouped by KV head: its query
    heads, then its k and v."""
    qk_norm: QkNorm | None = None
    clip_qkv: float | None = None
    """Limit for the absolute values of q, k and v, applied after the norms of q and k."""
    q_scaling: PositionScaling | None = None
    scale: float | None = None
    """Factor on q.k; None: 1 / sqrt(H)."""
    scales: tuple[float, ...] = ()
    """Per layer, in place of `scale`; empty: the same for all."""
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    has_sinks: bool = False
    is_causal: bool = True
    """Whether a token sees only tokens before it."""
    spans: bool = False
    """Whether tokens of a span see each other, see the op `Attention`."""
    has_gate: bool = False
    """Whether q's tensor has a gate after each head of q, whose sigmoid multiplies the head's
    result (Qwen3-Next)."""


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """The feed-forward block."""

    size: int
    activation: Activation | Literal["xielu"]
    gated: bool = True
    bias: bool = False
    fused: bool = False
    """Whether gate and up are one tensor, the gate first."""
    factors: tuple[float, float] = (1.0, 1.0)
    """On the gate before its activation, and on the output (Falcon-H1)."""


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names of a layer's tensors, relative to the layer prefix.

    The norm fields also say where norms are: before a block, on its output, or on the sum after
    it. None: no norm.
    """

    attention_norm: str | None = "input_layernorm"
    attention_out_norm: str | None = None
    attention_sum_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_out_norm: str | None = None
    mlp_sum_norm: str | None = None
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
    """Names of the checkpoint's tensors."""

    root: str = "model."
    """Prefix of all tensors except the head."""
    embed: str = "embed_tokens"
    positions: str = "embed_positions"
    embed_norm: str | None = None
    layers: str = "layers"
    final_norm: str | None = "norm"
    head: str = "lm_head"
    layer: LayerNames = LayerNames()


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """All values that determine a decoder's program."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    norm: NormSpec
    attention: AttentionSpec
    mlp: MlpSpec
    tie_word_embeddings: bool
    names: Names = Names()
    parallel: bool = False
    """Whether attention and MLP read the same row. If the MLP has no norm, it reads attention's."""
    positions: tuple[int, int] | None = None
    """The rows of the table of learned positions, and the first token's; None: there is none."""
    embed_size: int | None = None
    """The width of the embedding and the head, where two projections convert it (OPT)."""
    is_transposed: bool = False
    """Whether the weights of layers are [in, out] (GPT-2's Conv1D)."""
    embed_scale: float = 1.0
    given_scale: float = 1.0
    """Factor on rows that a request gives in place of embeddings (Granite's `inputs_embeds`)."""
    residual_scale: float = 1.0
    """Factor on the outputs of attention and MLP before they are added (Granite)."""
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    head_bias: bool = False
    experts: tuple[MoeSpec | None, ...] = ()
    """Per layer, the experts that replace the MLP, or None; empty: no layer has experts."""
    mixers: tuple[Mixer | None, ...] = ()
    """Per layer, what replaces attention, or None; empty: all layers have attention."""
    attention_factors: tuple[float, float] | None = None
    """Attention and the mixer read the same row and are added; these factors are on attention's
    input and output (Falcon-H1)."""
    num_deepstack: int = 0
    """Layers after each of which numbers of given rows are added (Qwen3-VL's images)."""
    parts: tuple[LayerPart, ...] = ()
    """Per layer, whether it has a mixer or attention, an MLP, or both; empty: both."""
