"""Encoders with rotary positions: ModernBERT, Nomic BERT, GTE, Jina Embeddings 3, EuroBERT."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from quire.config.pooling import PoolingType
from quire.errors import UnsupportedModelError
from quire.models.base import ACTIVATIONS
from quire.models.config_reader import MAX_LAYERS, MAX_POSITIONS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import MAX_EXPERTS, ExpertNames, MoeSpec, read_num_experts, read_top_k
from quire.models.families.bert import bert_classifier, roberta_classifier
from quire.models.families.encoder_fields import FLASH, ROTARY, jina_v3, read_encoder, rotated
from quire.models.pooling.encoder import Biases, EncoderNames, EncoderSpec, encoder_family
from quire.models.pooling.head import PoolingHead
from quire.models.reading import read_spec
from quire.models.rope import by_layer, rotary
from quire.models.spec import DecoderSpec
from quire.program import Activation, Builder, Rotary, Routing, Value

_NOMIC_LACKS = ("prenorm", "parallel_block", "use_rms_norm", "causal", "rotary_emb_interleaved")
"""Switches in the configurations of Nomic BERT that no published checkpoint has on."""
_NOMIC_GATES: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}
_POOLINGS: dict[str, PoolingType] = {"cls": "cls", "mean": "mean"}
_EUROBERT_POOLINGS: dict[str, PoolingType] = {"bos": "cls", "mean": "mean", "late": "late"}


def _modernbert(reader: ConfigReader) -> EncoderSpec:
    spec = _without_tables(read_encoder(reader, "model.", ROTARY))
    every = reader.size("global_attn_every_n_layers", MAX_LAYERS, example=3, default=3)
    kinds = reader.texts("layer_types", spec.num_layers) or [
        "sliding_attention" if layer % every else "full_attention"
        for layer in range(spec.num_layers)
    ]
    # Both neighbours of this distance are seen.
    reach = reader.size("local_attention", MAX_POSITIONS, example=128, default=128) // 2
    is_local = [kind == "sliding_attention" for kind in kinds]
    head_dim = spec.heads.head_dim
    full = _rotary_of(reader, head_dim, "full_attention", "global_rope_theta", 160_000.0)
    local = _rotary_of(reader, head_dim, "sliding_attention", "local_rope_theta", 10_000.0)
    attention_bias, mlp_bias = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    return replace(
        spec,
        norm_first=True,
        first_norm=False,
        biases=Biases(
            qkv=attention_bias,
            out=attention_bias,
            up=mlp_bias,
            down=mlp_bias,
            norms=reader.flag("norm_bias", False),
        ),
        rotaries=tuple(local if one else full for one in is_local),
        windows=tuple(reach + 1 if one else None for one in is_local),
        names=EncoderNames(
            root="model.",
            embed="embeddings.tok_embeddings",
            embed_norm="embeddings.norm",
            layers="layers",
            final_norm="final_norm",
            qkv="attn.Wqkv",
            out="attn.Wo",
            attention_norm="attn_norm",
            up="mlp.Wi",
            gate="mlp.Wi",
            down="mlp.Wo",
            mlp_norm="mlp_norm",
        ),
    )


def _without_tables(spec: EncoderSpec) -> EncoderSpec:
    return replace(spec, position_rows=0, num_types=0)


def _rotary_of(reader: ConfigReader, head_dim: int, kind: str, key: str, default: float) -> Rotary:
    """The rotary positions of a kind of layer, in transformers' new form or in the old one."""
    scaling = by_layer(reader).section(kind)
    theta = reader.number(key, 1.0, 1e12, example=default, default=default)
    plain = ConfigReader({"rope_type": "default", "rope_theta": theta}, reader.where)
    return rotary(reader, head_dim, scaling=scaling or plain)


def _modernbert_classifier(
    builder: Builder, reader: ConfigReader, x: Value, head: PoolingHead
) -> Value:
    bias = reader.flag("classifier_bias", False)
    x = builder.linear(x, "head.dense", x.dim, bias=bias, hint="dense", exact=True)
    x = builder.act(x, reader.choice("classifier_activation", ACTIVATIONS, default="gelu"))
    x = builder.layer_norm(
        x,
        "head.norm",
        reader.number("norm_eps", 0.0, 1.0, example=1e-5, default=1e-5),
        has_bias=reader.flag("norm_bias", False),
        hint="head_norm",
    )
    return builder.linear(x, "classifier", head.num_labels, bias=True, hint="classes", exact=True)


def _classifier_pooling(reader: ConfigReader) -> PoolingType:
    return reader.choice("classifier_pooling", _POOLINGS, default="cls")


def _nomic(reader: ConfigReader) -> EncoderSpec:
    """The published checkpoints have GPT-2's keys, and `swiglu` for a gate with SiLU."""
    for key in _NOMIC_LACKS:
        if reader.flag(key, False):
            raise UnsupportedModelError(f"{reader.where}: {key} is true; supported is false")
    spec = rotated(reader, read_encoder(reader, "bert.", ROTARY))
    names = replace(FLASH, root="bert.")
    if not reader.count("num_experts", MAX_EXPERTS, default=0):
        biases = Biases(qkv=False, out=False, up=False, down=False)
        if reader.has("activation_function"):
            spec = replace(spec, activation=reader.choice("activation_function", _NOMIC_GATES))
        return replace(spec, position_rows=0, biases=biases, names=names)
    return _nomic_experts(reader, replace(spec, position_rows=0, names=names))


def _nomic_experts(reader: ConfigReader, spec: EncoderSpec) -> EncoderSpec:
    """Read version 2: the second layer of each period has experts, whose sum has a bias. MLPs and
    experts have no gate. `activation_function` is the key that says this in both versions."""
    gelu = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}
    activation = cast(Activation, reader.choice("activation_function", gelu, default="gelu"))
    num_experts = read_num_experts(reader)
    every = reader.size("moe_every_n_layers", MAX_LAYERS, example=2, default=2)
    if reader.count("num_shared_experts", MAX_EXPERTS, default=0):
        raise reader.error("num_shared_experts", "above 0", "0", 0)
    moe = MoeSpec(
        num_experts,
        spec.mlp_size,
        activation,
        Routing(
            read_top_k(reader, num_experts, "moe_top_k", default=2),
            normalise=reader.flag("moe_normalize_expert_weights", False),
        ),
        ExpertNames("stacked", "mlp.experts.mlp", gate=None, up="w1", down="w2"),
        router="mlp.router.layer",
        out_bias="mlp.experts.bias",
    )
    if spec.num_types > 1:
        raise reader.error("type_vocab_size", spec.num_types, "1 in a model with experts", 1)
    return replace(
        spec,
        activation=activation,
        biases=Biases(
            qkv=reader.flag("qkv_proj_bias", True),
            out=reader.flag("qkv_proj_bias", True),
            up=reader.flag("mlp_fc1_bias", True),
            down=reader.flag("mlp_fc2_bias", True),
        ),
        names=replace(spec.names, up="mlp.fc1", gate=""),
        experts=tuple(moe if layer % every == 1 else None for layer in range(spec.num_layers)),
    )


def _gte(reader: ConfigReader) -> EncoderSpec:
    names = EncoderNames(
        root="new.",
        qkv="attention.qkv_proj",
        out="attention.o_proj",
        attention_norm="attn_ln",
        up="mlp.up_gate_proj",
        gate="mlp.up_gate_proj",
        down="mlp.down_proj",
        mlp_norm="mlp_ln",
    )
    spec = rotated(reader, read_encoder(reader, names.root, ROTARY))
    if reader.flag("logn_attention_scale", False):
        raise UnsupportedModelError(
            f"{reader.where}: logn_attention_scale is true; supported is false"
        )
    return replace(
        spec,
        position_rows=0,
        num_types=reader.count("type_vocab_size", 64, default=1),
        biases=Biases(up=False),
        names=names,
        gate_first=False,
    )


def _eurobert_classifier(
    builder: Builder, reader: ConfigReader, x: Value, head: PoolingHead
) -> Value:
    del reader
    if not head.by_token:
        x = builder.linear(x, "dense", x.dim, bias=True, hint="dense", exact=True)
        x = builder.act(x, "gelu")
    return builder.linear(x, "classifier", head.num_labels, bias=True, hint="classes", exact=True)


def _eurobert_pooling(reader: ConfigReader) -> PoolingType:
    return reader.choice("classifier_pooling", _EUROBERT_POOLINGS, default="late")


def _eurobert(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    return replace(spec, attention=replace(spec.attention, is_causal=False))


MODERNBERT = encoder_family(
    "modernbert",
    ("ModernBertModel",),
    _modernbert,
    models="ModernBERT, GTE-ModernBERT, Nomic ModernBERT Embed, Granite Embedding R2",
    keys={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
    defaults={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "intermediate_size": 1152,
    },
    classifier=_modernbert_classifier,
    classifier_pooling=_classifier_pooling,
)
NOMIC = encoder_family(
    "nomic_bert",
    ("NomicBertModel",),
    _nomic,
    models="Nomic Embed Text v1, v1.5 and v2",
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_emb_fraction",
    },
    defaults={"hidden_act": "silu", "rope_theta": 1000.0},
    classifier=bert_classifier,
    other_prefixes=("nomic_bert.",),
)
GTE = encoder_family(
    "gte",
    ("NewModel", "GteModel"),
    _gte,
    models="GTE multilingual and v1.5, Snowflake Arctic Embed M v2",
    defaults={"rope_theta": 160_000.0},
    classifier=bert_classifier,
    other_prefixes=("gte.",),
)
JINA_V3 = encoder_family(
    "jina_embeddings_v3",
    ("JinaEmbeddingsV3Model",),
    jina_v3,
    models="Jina Embeddings 3",
    defaults={"layer_norm_eps": 1e-5, "type_vocab_size": 1, "rope_theta": 20_000.0},
    classifier=roberta_classifier,
    other_prefixes=("jina_embeddings_v3.",),
)
EUROBERT = replace(
    decoder_family(
        "eurobert",
        ("EuroBertModel",),
        _eurobert,
        models="EuroBERT",
        defaults={"rms_norm_eps": 1e-5},
    ),
    classifier=_eurobert_classifier,
    classifier_pooling=_eurobert_pooling,
    is_encoder=True,
)
