"""Gemma 4 (text): layers with full attention have wider heads than layers with windows, and experts
may run in addition to the MLP. The tokens of an image see each other in layers with windows alone.

Source: transformers, `models/gemma4`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, ConfigReader
from quire.models.experts import ExpertNames, read_num_experts, read_top_k, read_width
from quire.models.families import gemma_blocks as blocks
from quire.models.reading import read_heads, read_mlp_size, read_window
from quire.models.rope import by_layer, rotary
from quire.models.text_part import IMAGE_SPANS
from quire.program import Builder, HeadLayout, Program, Routing, Value

_NAMES = ExpertNames("fused", "experts", down="down_proj")


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of every layer."""

    count: int
    width: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Gemma4Spec(blocks.GemmaSpec):
    """Spec with experts in all layers or in none."""

    experts: Experts | None = None


def read_spec(reader: ConfigReader) -> Gemma4Spec:
    """Read the spec. Raises CheckpointError for impossible values."""
    if reader.text("use_bidirectional_attention") == "all":
        raise reader.error("use_bidirectional_attention", "all", "absent or vision", "vision")
    kinds = blocks.read_kinds(reader, 6)
    kinds[-1] = "full_attention"
    rope = by_layer(reader)
    window = read_window(reader) if "sliding_attention" in kinds else None
    size = read_mlp_size(reader)
    doubles = reader.flag("use_double_wide_mlp", False)
    has_v, spans = not reader.flag("attention_k_eq_v", False), reader.flag(IMAGE_SPANS, False)
    layers = []
    for index, (kind, reads) in enumerate(
        zip(kinds, blocks.read_sharing(reader, kinds), strict=True)
    ):
        heads, is_full = _heads(reader, index, kind), kind == "full_attention"
        layers.append(
            blocks.Layer(
                heads,
                None if is_full else window,
                rotary(reader, heads.head_dim, scaling=rope.section(kind)),
                size * (2 if doubles and reads is not None else 1),
                reads,
                has_v or not is_full,
                spans and not is_full,
            )
        )
    experts = None
    if reader.flag("enable_moe_block", False):
        count = read_num_experts(reader)
        top_k = read_top_k(reader, count, "top_k_experts", default=8)
        experts = Experts(count, read_width(reader, "moe_intermediate_size"), top_k)
    return Gemma4Spec(**blocks.read_common(reader, tuple(layers)), experts=experts)


def _heads(reader: ConfigReader, index: int, kind: str) -> HeadLayout:
    """Return the heads of a layer. Full attention may have other heads: `global_head_dim` and, if v
    is k, `num_global_key_value_heads`; or `per_layer_config`, which transformers 5 writes."""
    heads = read_heads(reader)
    if (every := reader.section("per_layer_config")) is not None:
        own = next(
            (found for width in range(1, 5) if (found := every.section(f"{index:0{width}}"))),
            ConfigReader({}, every.where),
        )
        dim = own.size("head_dim", MAX_HEAD_DIM, example=512, default=heads.head_dim)
        count = heads.num_kv_heads
        count = own.size("num_key_value_heads", MAX_HEADS, example=4, default=count)
    elif kind == "full_attention":
        dim = reader.size("global_head_dim", MAX_HEAD_DIM, example=512, default=512)
        count = heads.num_kv_heads
        if reader.flag("attention_k_eq_v", False):
            key = "num_global_key_value_heads"
            count = reader.size(key, MAX_HEADS, example=4, default=count)
    else:
        return heads
    if heads.num_heads % count:
        wanted = f"a divisor of {heads.num_heads} heads"
        raise reader.error("num_global_key_value_heads", count, wanted, heads.num_heads)
    return HeadLayout(heads.num_heads, count, dim)


def build(name: str, spec: Gemma4Spec) -> Program:
    """Build the program of a spec."""
    builder = Builder(name)
    x, table = blocks.embed(builder, spec)
    given = blocks.layer_inputs(builder, x, spec)
    for index in range(len(spec.layers)):
        with builder.scope(f"layers.{index}"):
            x = _layer(builder, x, spec, index, given[index] if given else None)
    return blocks.end(builder, x, table, spec)


def _layer(
    builder: Builder, x: Value, spec: Gemma4Spec, index: int, given: blocks.LayerInput | None
) -> Value:
    prefix = f"{blocks.ROOT}layers.{index}."

    def normed(value: Value, name: str, hint: str) -> Value:
        return blocks.norm(builder, value, spec, prefix + name, hint)

    attended = blocks.attention(builder, normed(x, "input_layernorm", "norm"), spec, index)
    x = builder.add(x, normed(attended, "post_attention_layernorm", "o_norm"))
    hidden = normed(x, "pre_feedforward_layernorm", "mlp_norm")
    gate, up = blocks.gate_up(builder, hidden, index, spec.layers[index].mlp_size)
    out = blocks.down(builder, builder.glu(gate, up, spec.activation), spec, index)
    if spec.experts is not None:
        out = normed(out, "post_feedforward_layernorm_1", "dense_norm")
        mixed = _experts(builder, x, spec, spec.experts, prefix)
        out = builder.add(out, normed(mixed, "post_feedforward_layernorm_2", "experts_norm"))
    x = builder.add(x, normed(out, "post_feedforward_layernorm", "down_norm"))
    if given is not None:
        x = builder.add(x, blocks.from_layer_input(builder, x, given, spec, index))
    return builder.weigh(x, f"{prefix}layer_scalar", 1, "layer_scalar")


def _experts(builder: Builder, x: Value, spec: Gemma4Spec, experts: Experts, prefix: str) -> Value:
    """Add the experts of x, which is not normed. The router has its own norm."""
    router = builder.rms_norm(x, f"{prefix}router.scale", spec.eps, "router_norm")
    logits = builder.linear(
        router, f"{prefix}router.proj", experts.count, bias=False, hint="router", exact=True
    )
    logits = builder.scale(logits, spec.hidden_size**-0.5)
    routes = builder.route(logits, Routing(experts.top_k))
    routes = builder.weigh(
        routes, f"{prefix}router.per_expert_scale", experts.count, "routes_scaled"
    )
    hidden = blocks.norm(
        builder, x, spec, f"{prefix}pre_feedforward_layernorm_2", "experts_in_norm"
    )
    tensors = _NAMES.of(prefix, experts.count, experts.width, spec.hidden_size)
    return builder.experts(hidden, routes, tensors, experts.top_k, spec.activation)


_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
    },
}  # fmt: skip
_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "rope_parameters": _ROPE,
    "max_position_embeddings": 131072,
    "vocab_size_per_layer_input": 262144,
    "eos_token_id": 1,
}


GEMMA4 = blocks.gemma_family(
    "gemma4",
    ("Gemma4ForCausalLM",),
    read_spec,
    # A lambda looks `build` up at call time, so that tests can replace it.
    lambda name, spec: build(name, spec),
    models="Gemma 4 E2B, E4B, 26B-A4B and 31B; wrapped too (Gemma4ForConditionalGeneration)",
    defaults={**_DEFAULTS, "sliding_window": 512, "hidden_size_per_layer_input": 256},
)
GEMMA4_UNIFIED = blocks.gemma_family(
    "gemma4_unified",
    ("Gemma4UnifiedForCausalLM",),
    read_spec,
    lambda name, spec: build(name, spec),
    models="Gemma 4 12B; wrapped too (Gemma4UnifiedForConditionalGeneration)",
    defaults={**_DEFAULTS, "sliding_window": 1024, "max_position_embeddings": 262144},
)
