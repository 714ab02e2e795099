"""Llama 1, 2 and 3, models published as LlamaForCausalLM, and families that differ only in a few
values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import (
    every_window,
    qwen_windows,
    read_heads,
    read_num_layers,
    read_spec,
    refuse_flags,
    refuse_layer_types,
)
from quire.models.rope import rotary
from quire.models.spec import DecoderSpec, LayerNames, Names, QkNorm


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    return read_spec(reader)


def _seed_oss(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    out_bias = reader.flag("attention_out_bias", False)
    return replace(spec, attention=replace(spec.attention, out_bias=out_bias))


def _smollm3(reader: ConfigReader) -> DecoderSpec:
    """Read SmolLM 3. `no_rope_layers` has 1 for a layer with RoPE and 0 for one without."""
    num_layers = read_num_layers(reader)
    interval = reader.size("no_rope_layer_interval", MAX_LAYERS, example=4, default=4)
    rotates = reader.numbers("no_rope_layers", num_layers, 0, 1, example=1)
    if rotates is None:
        rotates = [float((layer + 1) % interval != 0) for layer in range(num_layers)]
    rotation = rotary(reader, read_heads(reader).head_dim)
    spec = read_spec(reader, rotaries=[rotation if rotated else None for rotated in rotates])
    return replace(spec, attention=replace(spec.attention, windows=qwen_windows(reader)))


def _phi3(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="none")
    attention = replace(spec.attention, fused="concat", windows=every_window(reader))
    return replace(spec, attention=attention, mlp=replace(spec.mlp, fused=True))


def _arcee(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    return replace(spec, mlp=replace(spec.mlp, gated=False))


def _apertus(reader: ConfigReader) -> DecoderSpec:
    is_xielu = reader.text("hidden_act") == "xielu"
    spec = read_spec(reader, activation="relu" if is_xielu else None)
    activation = "xielu" if is_xielu else spec.mlp.activation
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm()),
        mlp=replace(spec.mlp, activation=activation, gated=False, bias=False),
        names=Names(
            layer=LayerNames(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm")
        ),
    )


def _internlm3(reader: ConfigReader) -> DecoderSpec:
    """Read InternLM 3. `qkv_bias` applies to q, k and v; the output uses `bias`."""
    spec = read_spec(reader)
    bias = reader.flag("attention_bias", False)
    qkv_bias = reader.flag("qkv_bias", bias)
    return replace(spec, attention=replace(spec.attention, qkv_bias=qkv_bias, out_bias=bias))


def ernie_spec(reader: ConfigReader) -> DecoderSpec:
    """Read Llama's spec with RoPE of adjacent pairs, and biases everywhere or nowhere."""
    spec = read_spec(reader, interleaved=True)
    bias = reader.flag("use_bias", False)
    return replace(
        spec,
        attention=replace(spec.attention, qkv_bias=bias, out_bias=bias),
        mlp=replace(spec.mlp, bias=bias),
    )


def hunyuan_spec(reader: ConfigReader) -> DecoderSpec:
    """Read Llama's spec with norms of the heads of q and k after RoPE."""
    refuse_flags(reader, "use_cla")
    spec = read_spec(reader, biased="attention")
    names = LayerNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
    norm = QkNorm(after_rope=True) if reader.flag("use_qk_norm", True) else None
    return replace(spec, attention=replace(spec.attention, qk_norm=norm), names=Names(layer=names))


FAMILY = decoder_family(
    "llama",
    ("LlamaForCausalLM", "LLaMAForCausalLM"),
    _spec,
    models="Llama 1 to 3, TinyLlama, SmolLM 1 and 2, Yi, DeepSeek-R1-Distill-Llama, Falcon 3",
)
SEED_OSS = decoder_family(
    "seed_oss",
    ("SeedOssForCausalLM",),
    _seed_oss,
    models="Seed-OSS",
    defaults={"attention_bias": True, "head_dim": 128},
)
SMOLLM3 = decoder_family(
    "smollm3",
    ("SmolLM3ForCausalLM",),
    _smollm3,
    models="SmolLM 3",
    defaults={"rope_theta": 2e6, "tie_word_embeddings": True, "num_key_value_heads": 4},
)
PHI3 = decoder_family(
    "phi3",
    ("Phi3ForCausalLM",),
    _phi3,
    models="Phi 3, 3.5, 4 and 4-mini",
    defaults={"rms_norm_eps": 1e-5},
)
ARCEE = decoder_family(
    "arcee",
    ("ArceeForCausalLM",),
    _arcee,
    models="Arcee AFM",
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2"},
)
APERTUS = decoder_family(
    "apertus",
    ("ApertusForCausalLM",),
    _apertus,
    models="Apertus",
    ignorable=(r".*\.act_fn\.(beta|eps)",),
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "xielu",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1.2e7,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
)
INTERNLM3 = decoder_family(
    "internlm3",
    ("InternLM3ForCausalLM",),
    _internlm3,
    models="InternLM 3",
    keys={"mlp_bias": "bias", "attention_bias": "bias"},
    defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 2},
)
ERNIE = decoder_family(
    "ernie4_5",
    ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    ernie_spec,
    models="ERNIE 4.5 0.3B",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "head_dim": 128,
        "num_key_value_heads": 2,
    },
)
HUNYUAN = decoder_family(
    "hunyuan",
    ("HunYuanDenseV1ForCausalLM",),
    hunyuan_spec,
    models="Hunyuan 0.5B to 7B, Hunyuan-MT",
    defaults={"rms_norm_eps": 1e-5},
)
HELIUM = decoder_family(
    "helium",
    ("HeliumForCausalLM",),
    partial(read_spec, interleaved=True),
    models="Helium",
    defaults={"rms_norm_eps": 1e-8, "rope_theta": 1e5, "head_dim": 128},
)
