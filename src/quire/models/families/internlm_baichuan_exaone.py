"""Families whose code was published with their weights and is not part of transformers: InternLM 2,
Baichuan 1 and EXAONE 3. That code is never run."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.alibi import bloom_slopes
from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import read_num_layers, read_spec
from quire.models.spec import DecoderSpec, LayerNames, Names

_BAICHUAN2_VOCAB = 125696
_ROTATING_WIDTH = 4096


def _internlm2(reader: ConfigReader) -> DecoderSpec:
    """Source: vLLM 0.32, `models/internlm2.py`."""
    spec = read_spec(reader, biased="attention")
    layer = LayerNames(
        attention_norm="attention_norm",
        mlp_norm="ffn_norm",
        qkv="attention.wqkv",
        out="attention.wo",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
    )
    return replace(
        spec,
        attention=replace(spec.attention, fused="grouped"),
        names=Names(embed="tok_embeddings", head="output", layer=layer),
    )


def _baichuan(reader: ConfigReader) -> DecoderSpec:
    """Read Baichuan 1: 7B uses RoPE, 13B uses ALiBi. Source: vLLM 0.22, `models/baichuan.py`."""
    return _baichuan_of_kind(
        reader, rotates=reader.number("hidden_size", 1, 1 << 17, example=4096) == _ROTATING_WIDTH
    )


def _baichuan_of_kind(reader: ConfigReader, *, rotates: bool) -> DecoderSpec:
    if reader.number("vocab_size", 1, 1 << 24, example=64000) == _BAICHUAN2_VOCAB:
        raise UnsupportedModelError(
            f"{reader.where}: Baichuan 2, whose head has normalised rows, is not supported; "
            "use Baichuan 1"
        )
    rotaries = None if rotates else [None] * read_num_layers(reader)
    spec = read_spec(reader, rotaries=rotaries)
    slopes = None if rotates else bloom_slopes(spec.attention.heads.num_heads)
    return replace(
        spec,
        attention=replace(spec.attention, fused="concat", alibi_slopes=slopes),
        names=Names(layer=LayerNames(qkv="self_attn.W_pack")),
    )


def _exaone(reader: ConfigReader) -> DecoderSpec:
    """Source: vLLM 0.32, `models/exaone.py`."""
    layer = LayerNames(
        attention_norm="ln_1",
        mlp_norm="ln_2",
        q="attn.attention.q_proj",
        k="attn.attention.k_proj",
        v="attn.attention.v_proj",
        out="attn.attention.out_proj",
        gate="mlp.c_fc_0",
        up="mlp.c_fc_1",
        down="mlp.c_proj",
    )
    names = Names(root="transformer.", embed="wte", layers="h", final_norm="ln_f", layer=layer)
    return replace(read_spec(reader), names=names)


INTERNLM2 = decoder_family(
    "internlm2",
    ("InternLM2ForCausalLM",),
    _internlm2,
    models="InternLM 2 and 2.5",
    keys={"attention_bias": "bias"},
)
BAICHUAN_7B = decoder_family(
    "baichuan_7b",
    ("BaiChuanForCausalLM",),
    lambda reader: _baichuan_of_kind(reader, rotates=True),
    models="Baichuan 1 7B",
)
BAICHUAN = decoder_family(
    "baichuan",
    ("BaichuanForCausalLM",),
    _baichuan,
    models="Baichuan 1 13B",
    keys={"max_position_embeddings": "model_max_length"},
)
EXAONE = decoder_family(
    "exaone",
    ("ExaoneForCausalLM",),
    _exaone,
    models="EXAONE 3 and 3.5, Deep",
    keys={
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
)
