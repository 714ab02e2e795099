"""Older families with layer norms, most of which compute attention and MLP from the same input:
GPT-NeoX, GPT-J, Phi 1 and 2, StableLM and Falcon."""

from __future__ import annotations

from dataclasses import replace

from quire.models.alibi import bloom_slopes
from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.families.gpt2_and_opt import GPT2_KEYS
from quire.models.reading import (
    read_hidden_size,
    read_mlp_size,
    read_num_layers,
    read_spec,
    read_split_heads,
    refuse_flags,
)
from quire.models.rope import rotary
from quire.models.spec import DecoderSpec, LayerNames, Names, QkNorm
from quire.program import HeadLayout


def _with_layer_norms(spec: DecoderSpec, names: Names) -> DecoderSpec:
    return replace(spec, norm=replace(spec.norm, kind="layer", has_bias=True), names=names)


def _neox(reader: ConfigReader) -> DecoderSpec:
    layer = LayerNames(
        qkv="attention.query_key_value",
        out="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    spec = read_spec(reader, heads=read_split_heads(reader))
    names = Names(
        root="gpt_neox.",
        embed="embed_in",
        final_norm="final_layer_norm",
        head="embed_out",
        layer=layer,
    )
    return replace(
        _with_layer_norms(spec, names),
        attention=replace(spec.attention, fused="grouped"),
        mlp=replace(spec.mlp, gated=False, bias=True),
        parallel=reader.flag("use_parallel_residual", True),
    )


def _gptj(reader: ConfigReader) -> DecoderSpec:
    """Read GPT-J. RoPE rotates adjacent pairs in the first `rotary_dim` numbers of each head."""
    heads = read_split_heads(reader)
    dim = reader.size("rotary_dim", MAX_HEAD_DIM, example=64, default=min(64, heads.head_dim))
    if dim > heads.head_dim:
        raise reader.error("rotary_dim", dim, f"at most {heads.head_dim}", heads.head_dim)
    rotation = rotary(reader, dim, interleaved=True)
    layer = LayerNames(
        attention_norm="ln_1",
        mlp_norm=None,
        q="attn.q_proj",
        k="attn.k_proj",
        v="attn.v_proj",
        out="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
    )
    names = Names(root="transformer.", embed="wte", layers="h", final_norm="ln_f", layer=layer)
    spec = read_spec(
        reader,
        heads=heads,
        rotaries=[rotation] * read_num_layers(reader),
        mlp_size=read_mlp_size(reader, 4 * read_hidden_size(reader)),
    )
    return replace(
        _with_layer_norms(spec, names),
        attention=replace(spec.attention, qkv_bias=False, out_bias=False),
        mlp=replace(spec.mlp, gated=False, bias=True),
        parallel=True,
        head_bias=True,
    )


def _phi(reader: ConfigReader) -> DecoderSpec:
    refuse_flags(reader, "qk_layernorm")
    layer = LayerNames(mlp_norm=None, out="self_attn.dense", up="mlp.fc1", down="mlp.fc2")
    spec = read_spec(reader)
    return replace(
        _with_layer_norms(spec, Names(final_norm="final_layernorm", layer=layer)),
        attention=replace(spec.attention, qkv_bias=True, out_bias=True),
        mlp=replace(spec.mlp, gated=False, bias=True),
        parallel=True,
        head_bias=True,
    )


def _stablelm(reader: ConfigReader) -> DecoderSpec:
    parallel = reader.flag("use_parallel_residual", False)
    layer = LayerNames(
        mlp_norm=None if parallel else "post_attention_layernorm",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
    )
    spec = read_spec(reader)
    norm = QkNorm(kind="layer", weights="listed")
    attention = replace(
        spec.attention,
        qkv_bias=reader.flag("use_qkv_bias", False),
        out_bias=False,
        qk_norm=norm if reader.flag("qk_layernorm", False) else None,
    )
    return replace(
        _with_layer_norms(spec, Names(layer=layer)),
        attention=attention,
        mlp=replace(spec.mlp, bias=False),
        parallel=parallel,
    )


def _falcon(reader: ConfigReader) -> DecoderSpec:
    """Read Falcon. 7B: one KV head and one norm. 40B and larger: grouped KV heads and two norms.
    RW: a KV head per head, ALiBi, attention before the MLP."""
    is_new = reader.flag("new_decoder_architecture", False)
    heads = _falcon_heads(reader, is_new)
    num_norms = reader.size("num_ln_in_parallel_attn", 2, example=1, default=2 if is_new else 1)
    parallel = reader.flag("parallel_attn", True) or is_new
    has_alibi = reader.flag("alibi", False)
    rotation = None if has_alibi else rotary(reader, heads.head_dim)
    layer = LayerNames(
        attention_norm="ln_attn" if parallel and num_norms == 2 else "input_layernorm",
        mlp_norm=("ln_mlp" if num_norms == 2 else None) if parallel else "post_attention_layernorm",
        qkv="self_attention.query_key_value",
        out="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    names = Names(
        root="transformer.", embed="word_embeddings", layers="h", final_norm="ln_f", layer=layer
    )
    bias = reader.flag("bias", False)
    spec = read_spec(
        reader,
        heads=heads,
        rotaries=[rotation] * read_num_layers(reader),
        mlp_size=read_mlp_size(reader, 4 * read_hidden_size(reader)),
    )
    scale = heads.head_dim**-0.5
    slopes = tuple(scale * slope for slope in bloom_slopes(heads.num_heads))
    return replace(
        _with_layer_norms(spec, names),
        attention=replace(
            spec.attention,
            fused="grouped",
            qkv_bias=bias,
            out_bias=bias,
            alibi_slopes=slopes if has_alibi else None,
        ),
        mlp=replace(spec.mlp, gated=False, bias=bias),
        parallel=parallel,
    )


def _falcon_heads(reader: ConfigReader, is_new: bool) -> HeadLayout:
    heads = read_split_heads(reader)
    num_heads = heads.num_heads
    if is_new:
        num_kv_heads = reader.size("num_kv_heads", MAX_HEADS, example=8, default=num_heads)
    else:
        num_kv_heads = 1 if reader.flag("multi_query", True) else num_heads
    if num_heads % num_kv_heads:
        raise reader.error("num_kv_heads", num_kv_heads, f"a divisor of {num_heads}", num_heads)
    return HeadLayout(num_heads, num_kv_heads, heads.head_dim)


_EPS = {"rms_norm_eps": "layer_norm_eps"}
_MASKS = r".*\.(attn|attention)\.(bias|masked_bias)"
_QUARTER = {"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.25}

NEOX = decoder_family(
    "gpt_neox",
    ("GPTNeoXForCausalLM",),
    _neox,
    models="Pythia, GPT-NeoX 20B, RedPajama, Dolly 2",
    keys={**_EPS, "partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    defaults={**_QUARTER, "hidden_act": "gelu", "attention_bias": True},
    ignorable=(_MASKS, r".*\.rotary_emb\.inv_freq"),
)
GPTJ = decoder_family(
    "gptj",
    ("GPTJForCausalLM",),
    _gptj,
    models="GPT-J 6B",
    keys=GPT2_KEYS,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu_new"},
    ignorable=(_MASKS,),
)
PHI = decoder_family(
    "phi",
    ("PhiForCausalLM",),
    _phi,
    models="Phi 1, 1.5 and 2",
    keys=_EPS,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
)
STABLELM = decoder_family(
    "stablelm",
    ("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    _stablelm,
    models="StableLM 2, StableLM Zephyr, Stable Code",
    keys=_EPS,
    defaults=_QUARTER,
)
FALCON = decoder_family(
    "falcon",
    ("FalconForCausalLM", "RWForCausalLM"),
    _falcon,
    models="Falcon 1 and 2: RW-1B, 7B, 11B, 40B, 180B",
    keys={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_kv_heads": "n_head_kv",
        "rms_norm_eps": "layer_norm_epsilon",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
    },
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
    },
)
