"""Families with Mamba 2: Bamba, Falcon-H1, Nemotron-H and Mamba 2 itself; Granite 4 is in
`experts/granite_moe`."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    ConfigReader,
)
from quire.models.decoder import decoder_family
from quire.models.experts import MAX_EXPERTS, ExpertLatent, ExpertNames, MoeSpec, SharedExpert
from quire.models.families.experts.deepseek import sigmoid_moe
from quire.models.families.recurrent_fields import (
    MAX_STATE,
    NO_LIMIT,
    no_attention,
    read_conv,
    read_dt_limits,
    read_groups,
    read_mamba2,
    with_mixers,
)
from quire.models.mixers import Mamba2Factors, Mamba2Mixer
from quire.models.reading import (
    LARGEST_FACTOR,
    read_activation,
    read_factor,
    read_hidden_size,
    read_num_layers,
    read_spec,
)
from quire.models.spec import DecoderSpec, LayerNames, LayerPart, MlpSpec, Names, NormSpec

FINAL_NORM_NAMES = Names(
    final_norm="final_layernorm",
    layer=LayerNames(
        mlp_norm="pre_ff_layernorm",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
    ),
)


def _bamba(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    spec = replace(spec, names=FINAL_NORM_NAMES)
    attention = reader.indices("attn_layer_indices", MAX_LAYERS)
    is_recurrent = [layer not in attention for layer in range(spec.num_layers)]
    return with_mixers(spec, read_mamba2(reader, spec.norm.eps), is_recurrent)


def _falcon_h1(reader: ConfigReader) -> DecoderSpec:
    """Read Falcon-H1: attention and Mamba read the same row. Most products have a factor."""
    spec = read_spec(reader)
    norm = "none"
    if reader.flag("mamba_rms_norm", False):
        norm = "before" if reader.flag("mamba_norm_before_gate", True) else "after"
    before, out = (read_factor(reader, f"ssm_{one}_multiplier") for one in ("in", "out"))
    z, x, b, c, dt = _factors(reader, "ssm_multipliers", 5)
    mixer = read_mamba2(
        reader, spec.norm.eps, norm=norm, out_bias=reader.flag("projectors_bias", False),
        factors=Mamba2Factors(before, z, x, b, c, dt, out),
    )  # fmt: skip
    heads, gate_down = spec.attention.heads, _factors(reader, "mlp_multipliers", 2)
    attention = replace(
        spec.attention, scale=heads.head_dim**-0.5 * read_factor(reader, "key_multiplier")
    )
    spec = replace(
        spec,
        attention=attention,
        mlp=replace(spec.mlp, factors=(gate_down[0], gate_down[1])),
        names=FINAL_NORM_NAMES,
        attention_factors=(
            read_factor(reader, "attention_in_multiplier"),
            read_factor(reader, "attention_out_multiplier"),
        ),
        embed_scale=read_factor(reader, "embedding_multiplier"),
        logits_scale=read_factor(reader, "lm_head_multiplier"),
    )
    return with_mixers(spec, mixer, [True] * spec.num_layers)


def _factors(reader: ConfigReader, key: str, count: int) -> list[float]:
    low = 1.0 / LARGEST_FACTOR
    found = reader.numbers(key, count, low, LARGEST_FACTOR, example=1.0)
    return found or [1.0] * count


def _nemotron_h(reader: ConfigReader) -> DecoderSpec:
    """Read Nemotron-H, whose layers have one part each: Mamba, attention without RoPE, an MLP, or
    experts."""
    kinds = _nemotron_kinds(reader)
    reader = reader.translated(
        {"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "mlp_hidden_act"},
        {"num_hidden_layers": len(kinds), "rms_norm_eps": 1e-5, "hidden_act": "relu2",
         "head_dim": 128, "num_key_value_heads": 8},
    )  # fmt: skip
    spec = read_spec(reader, rotaries=(None,) * len(kinds))
    num_heads = reader.size("mamba_num_heads", MAX_HEADS, example=64, default=128)
    use_bias = reader.flag("use_bias", False)
    mixer = Mamba2Mixer(
        prefix="mixer.",
        num_heads=num_heads,
        head_dim=reader.size("mamba_head_dim", MAX_HEAD_DIM, example=64, default=64),
        num_groups=read_groups(reader, "n_groups", num_heads, 8),
        state_dim=reader.size("ssm_state_size", MAX_STATE, example=128, default=128),
        conv_width=read_conv(reader, "conv_kernel"),
        eps=spec.norm.eps,
        activation=read_activation(reader, "mamba_hidden_act"),
        conv_bias=reader.flag("use_conv_bias", True),
        in_bias=use_bias,
        out_bias=use_bias,
        dt_limits=read_dt_limits(reader),
    )
    parts: list[LayerPart] = ["mlp" if kind in ("mlp", "moe") else "mixer" for kind in kinds]
    names = LayerNames(
        attention_norm="norm", mlp_norm="norm", q="mixer.q_proj", k="mixer.k_proj",
        v="mixer.v_proj", out="mixer.o_proj", up="mixer.up_proj", down="mixer.down_proj",
    )  # fmt: skip
    spec = replace(
        spec,
        attention=replace(spec.attention, qkv_bias=False, out_bias=False),
        mlp=replace(spec.mlp, gated=False),
        names=Names(embed="embeddings", final_norm="norm_f", layer=names),
        parts=tuple(parts),
        experts=_nemotron_experts(reader, kinds),
    )
    return with_mixers(spec, mixer, [kind == "mamba" for kind in kinds])


_NEMOTRON_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = {
    "linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention",
    "attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip


def _nemotron_kinds(reader: ConfigReader) -> list[str]:
    """Read the kind of each layer: a list of names, or a text with a letter for each."""
    pattern = reader.text("hybrid_override_pattern")
    listed = [_NEMOTRON_KINDS.get(letter, letter) for letter in pattern or ""]
    if not listed:
        listed = [_NEMOTRON_NAMES.get(name, name) for name in reader.names("layers_block_type")]
    if not listed or set(listed) - set(_NEMOTRON_KINDS.values()):
        wanted = "mamba, attention, mlp or moe for each layer"
        raise reader.error("layers_block_type", listed, wanted, ["mamba", "mlp"])
    return listed


def _nemotron_experts(reader: ConfigReader, kinds: list[str]) -> tuple[MoeSpec | None, ...]:
    """Read the experts, which have no gate: those of DeepSeek-V3 otherwise. Their rows may be
    narrower than the model's."""
    if "moe" not in kinds:
        return ()
    bias = reader.flag("mlp_bias", False)
    shared = latent = None
    if reader.count("n_shared_experts", MAX_EXPERTS, default=1):
        key = "moe_shared_expert_intermediate_size"
        width = reader.size(key, MAX_FEED_FORWARD, example=3712, default=7688)
        shared = SharedExpert(width, "mixer.shared_experts", bias=bias)
    if reader.has("moe_latent_size"):
        width = reader.size("moe_latent_size", MAX_FEED_FORWARD, example=1024)
        latent = ExpertLatent(width, "mixer.fc1_latent_proj", "mixer.fc2_latent_proj", bias)
    moe = replace(
        sigmoid_moe(reader, normalise=True),
        tensors=ExpertNames(prefix="mixer.experts", gate=None),
        router="mixer.gate",
        choice_bias="mixer.gate.e_score_correction_bias",
        shared=shared,
        latent=latent,
    )
    return tuple(moe if kind == "moe" else None for kind in kinds)


def _mamba2(reader: ConfigReader) -> DecoderSpec:
    num_heads = reader.size("num_heads", MAX_HEADS, example=128, default=128)
    head_dim = reader.size("head_dim", MAX_HEAD_DIM, example=64, default=64)
    eps = reader.number("layer_norm_epsilon", 0.0, 1.0, example=1e-5, default=1e-5)
    use_bias = reader.flag("use_bias", False)
    mixer = Mamba2Mixer(
        prefix="mixer.",
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=read_groups(reader, "n_groups", num_heads, 8),
        state_dim=reader.size("state_size", MAX_STATE, example=128, default=128),
        conv_width=read_conv(reader, "conv_kernel"),
        eps=eps,
        activation=read_activation(reader, "hidden_act"),
        conv_bias=reader.flag("use_conv_bias", True),
        in_bias=use_bias,
        out_bias=use_bias,
        dt_limits=read_dt_limits(reader),
    )
    spec = mixers_only(reader, eps, num_heads * head_dim)
    return with_mixers(spec, mixer, [True] * spec.num_layers)


def mixers_only(reader: ConfigReader, eps: float, width: int) -> DecoderSpec:
    """Return the spec of a model whose layers are mixers alone, named as in Mamba."""
    num_layers = read_num_layers(reader)
    names = LayerNames(attention_norm="norm", mlp_norm=None)
    mixer: LayerPart = "mixer"
    return DecoderSpec(
        num_layers=num_layers,
        hidden_size=read_hidden_size(reader),
        vocab_size=reader.size("vocab_size", 1 << 24, example=50280),
        norm=NormSpec(eps),
        attention=no_attention(num_layers, min(width, MAX_FEED_FORWARD)),
        mlp=MlpSpec(1, "silu"),
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        names=Names(root="backbone.", embed="embeddings", final_norm="norm_f", layer=names),
        parts=(mixer,) * num_layers,
    )


BAMBA = decoder_family(
    "bamba",
    ("BambaForCausalLM",),
    _bamba,
    models="Bamba 9B",
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5},
)
FALCON_H1 = decoder_family(
    "falcon_h1",
    ("FalconH1ForCausalLM",),
    _falcon_h1,
    models="Falcon-H1 0.5B to 34B",
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
)
NEMOTRON_H = decoder_family(
    "nemotron_h",
    ("NemotronHForCausalLM",),
    _nemotron_h,
    models="Nemotron-H 4B to 56B, Nemotron Nano 2, Nemotron 3 Nano and Super",
    defaults={"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688},
    other_prefixes=("backbone.",),
)
MAMBA2 = decoder_family(
    "mamba2",
    ("Mamba2ForCausalLM",),
    _mamba2,
    models="Mamba 2, Codestral Mamba",
    defaults={"max_position_embeddings": NO_LIMIT},
)
