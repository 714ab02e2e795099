"""GPT-2: learned positions, pre-norm layers, and Conv1D weights, which are stored transposed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from quire.errors import UnsupportedModelError
from quire.models.base import ACTIVATIONS, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.reading import split_heads
from quire.program import Activation, Builder, HeadLayout, Out, Program, Tensor, Value


@dataclass(frozen=True, slots=True)
class _Spec:
    num_layers: int
    hidden_size: int
    inner_size: int
    vocab_size: int
    num_positions: int
    heads: HeadLayout
    activation: Activation
    norm_eps: float
    scale_by_head_dim: bool
    scale_by_layer: bool
    tie_word_embeddings: bool
    transposed: bool
    """Whether weights are [in, out], as in Conv1D. Those of GGUF files are not."""

    def attention_scale(self, layer: int) -> float:
        """Return the factor of q.k in this layer."""
        scale = self.heads.head_dim**-0.5 if self.scale_by_head_dim else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale


def _spec(reader: ConfigReader) -> _Spec:
    if reader.flag("add_cross_attention", False):
        raise UnsupportedModelError(f"{reader.where}: add_cross_attention is not supported")
    hidden_size = reader.size("n_embd", MAX_HIDDEN, example=768)
    return _Spec(
        num_layers=reader.size("n_layer", MAX_LAYERS, example=12),
        hidden_size=hidden_size,
        inner_size=reader.size("n_inner", MAX_FEED_FORWARD, example=3072, default=4 * hidden_size),
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=50257),
        num_positions=reader.size("n_positions", MAX_POSITIONS, example=1024),
        heads=split_heads(reader, hidden_size, reader.size("n_head", MAX_HEADS, example=12)),
        activation=reader.choice("activation_function", ACTIVATIONS, default="gelu_new"),
        norm_eps=reader.number("layer_norm_epsilon", 0.0, 1.0, example=1e-5, default=1e-5),
        scale_by_head_dim=reader.flag("scale_attn_weights", True),
        scale_by_layer=reader.flag("scale_attn_by_inverse_layer_idx", False),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        transposed=reader.flag("transposed_weights", True),
    )


def _build(reader: ConfigReader) -> Program:
    spec = _spec(reader)
    builder = Builder("gpt2")
    table = Tensor("transformer.wte.weight", (spec.vocab_size, spec.hidden_size))
    x = builder.embed(table)
    positions = Tensor("transformer.wpe.weight", (spec.num_positions, spec.hidden_size))
    x = builder.learned_positions(x, positions)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, layer)
    x = builder.layer_norm(x, "transformer.ln_f", spec.norm_eps)
    untied = Tensor("lm_head.weight", (spec.vocab_size, spec.hidden_size))
    builder.logits(x, table if spec.tie_word_embeddings else untied)
    return builder.program()


def _layer(builder: Builder, x: Value, spec: _Spec, layer: int) -> Value:
    prefix, size = f"transformer.h.{layer}", spec.hidden_size
    normed = builder.layer_norm(x, f"{prefix}.ln_1", spec.norm_eps)
    qkv = dict.fromkeys("qkv", size)
    q, k, v = _linears(builder, normed, f"{prefix}.attn.c_attn", qkv, spec, "qkv")
    attended = builder.attention(q, k, v, spec.heads, scale=spec.attention_scale(layer))
    [out] = _linears(builder, attended, f"{prefix}.attn.c_proj", {"o": size}, spec, "o")
    x = builder.add(x, out)
    normed = builder.layer_norm(x, f"{prefix}.ln_2", spec.norm_eps, hint="mlp_norm")
    inner = {"fc": spec.inner_size}
    [hidden] = _linears(builder, normed, f"{prefix}.mlp.c_fc", inner, spec, "fc")
    hidden = builder.act(hidden, spec.activation)
    [out] = _linears(builder, hidden, f"{prefix}.mlp.c_proj", {"proj": size}, spec, "proj")
    return builder.add(x, out)


def _linears(
    builder: Builder, x: Value, prefix: str, dims: dict[str, int], spec: _Spec, hint: str
) -> tuple[Value, ...]:
    """Return the products with consecutive parts of one weight."""
    if spec.transposed:
        return builder.conv1d(x, prefix, dims, hint=hint)
    if len(dims) == 1:
        return (builder.linear(x, prefix, dims[hint], bias=True, hint=hint),)
    total, ends = sum(dims.values()), accumulate(dims.values())
    outs = [
        Out(part, prefix, dim, True, ((end - dim, dim),), total)
        for (part, dim), end in zip(dims.items(), ends, strict=True)
    ]
    return builder.linears(x, outs, hint=hint)


def _facts(reader: ConfigReader) -> ModelFacts:
    spec = _spec(reader)
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=spec.num_positions,
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def _names(reader: ConfigReader) -> NameMap:
    """Return the name map. Older files store each layer's causal mask as a buffer."""
    ignorable = [r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"]
    if reader.flag("tie_word_embeddings", True):
        ignorable.append(r"lm_head\.weight")
    return NameMap("transformer.", (), tuple(ignorable))


FAMILY = ModelFamily(
    "gpt2",
    ("GPT2LMHeadModel",),
    _build,
    _facts,
    _names,
    models="GPT-2, DistilGPT-2",
)
