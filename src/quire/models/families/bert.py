"""BERT, and encoders that differ from it in a few values: RoBERTa, XLM-R, DistilBERT, MPNet and
Jina BERT 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.alibi import bloom_slopes
from quire.models.config_reader import MAX_VOCAB, ConfigReader
from quire.models.families.encoder_fields import jina_v3, read_encoder
from quire.models.pooling.encoder import (
    Biases,
    EncoderNames,
    EncoderSpec,
    RelativeBiases,
    encoder_family,
)
from quire.models.pooling.head import PoolingHead
from quire.program import Activation, Builder, Value

_DISTANCE = 128
"""Distances from which on MPNet does not distinguish them."""
_BUCKETS = 32
"""MPNet uses so many rows of its table of biases, whatever config.json says."""
_MPNET_PADDING = 1
"""MPNet counts positions from the row after this one, whatever `pad_token_id` is."""


def _bert(reader: ConfigReader) -> EncoderSpec:
    _check_both_ways(reader)
    return read_encoder(reader, "bert.")


def _check_both_ways(reader: ConfigReader) -> None:
    """Raises UnsupportedModelError for a decoder of such a class."""
    if reader.flag("is_decoder", False):
        raise UnsupportedModelError(f"{reader.where}: is_decoder is true; supported is false")


def _roberta(reader: ConfigReader) -> EncoderSpec:
    """Positions are counted from the row after that of the padding; or they are rotary, as in Jina
    Embeddings 3 as published."""
    _check_both_ways(reader)
    if reader.text("position_embedding_type") == "rotary":
        keys = {"rope_theta": "rotary_emb_base"}
        return jina_v3(reader.translated(keys, {"rope_theta": 10_000.0, "type_vocab_size": 1}))
    padding = reader.count("pad_token_id", MAX_VOCAB, default=1)
    return _after_padding(reader, read_encoder(reader, "roberta."), padding)


def _after_padding(reader: ConfigReader, spec: EncoderSpec, padding: int) -> EncoderSpec:
    # GGUF files have the table without the rows before the first position.
    offset = reader.count("position_offset", MAX_VOCAB, default=padding + 1)
    return replace(spec, position_offset=offset, max_model_len=spec.position_rows - offset)


def _distilbert(reader: ConfigReader) -> EncoderSpec:
    names = EncoderNames(
        root="distilbert.",
        layers="transformer.layer",
        q="attention.q_lin",
        k="attention.k_lin",
        v="attention.v_lin",
        out="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        mlp_norm="output_layer_norm",
    )
    spec = read_encoder(reader, "distilbert.")
    return replace(spec, num_types=0, names=names)


def _jina_v2(reader: ConfigReader) -> EncoderSpec:
    """ALiBi in both directions instead of positions, and a gated MLP."""
    names = EncoderNames(
        root="bert.",
        up="mlp.gated_layers",
        gate="mlp.gated_layers",
        down="mlp.wo",
        mlp_norm="mlp.layernorm",
    )
    kind = reader.choice("feed_forward_type", _GATES, default="geglu")
    spec = read_encoder(reader, names.root, ("alibi",))
    return replace(
        spec,
        position_rows=0,
        activation=kind,
        biases=Biases(up=False),
        alibi_slopes=bloom_slopes(spec.heads.num_heads),
        names=names,
    )


def _mpnet(reader: ConfigReader) -> EncoderSpec:
    names = EncoderNames(
        root="mpnet.",
        q="attention.attn.q",
        k="attention.attn.k",
        v="attention.attn.v",
        out="attention.attn.o",
        attention_norm="attention.LayerNorm",
    )
    num_buckets = reader.size("relative_attention_num_buckets", 1024, example=32, default=32)
    if num_buckets < _BUCKETS:
        raise reader.error("relative_attention_num_buckets", num_buckets, f"{_BUCKETS} or more", 32)
    reach = range(-_DISTANCE, _DISTANCE + 1)
    biases = RelativeBiases(
        "encoder.relative_attention_bias.weight", num_buckets, tuple(map(_bucket, reach))
    )
    spec = _after_padding(reader, read_encoder(reader, "mpnet."), _MPNET_PADDING)
    return replace(spec, num_types=0, names=names, relative=biases)


def _bucket(distance: int) -> int:
    """The bucket of a key at this distance. Half of the buckets are for each direction; the first
    half of these have one distance each, the others grow.

    Source: Raffel et al. 2020, T5, as in transformers' models/mpnet (`relative_position_bucket`).
    """
    half, far = _BUCKETS // 2, _BUCKETS // 4
    first, steps = (half if distance > 0 else 0), abs(distance)
    if steps < far:
        return first + steps
    growth = math.log(steps / far) / math.log(_DISTANCE / far) * (half - far)
    return first + min(far + int(growth), half - 1)


def _classifier(
    dense: str, hint: str, act: Activation, classes: str = "classifier"
) -> Callable[[Builder, ConfigReader, Value, PoolingHead], Value]:
    """A layer on the first token's state, then the classes; of tokens the classes alone."""

    def write(builder: Builder, reader: ConfigReader, x: Value, head: PoolingHead) -> Value:
        del reader
        name = "classifier"
        if not head.by_token:
            x = builder.linear(x, dense, x.dim, bias=True, hint=hint, exact=True)
            x, name = builder.act(x, act), classes
        return builder.linear(x, name, head.num_labels, bias=True, hint="classes", exact=True)

    return write


bert_classifier = _classifier("pooler.dense", "pooler", "tanh")
roberta_classifier = _classifier("classifier.dense", "dense", "tanh", "classifier.out_proj")
_GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
_OLD_NAMES = (r".*\.embeddings\.token_type_ids",)

BERT = encoder_family(
    "bert",
    ("BertModel",),
    _bert,
    models="BERT, MiniLM, BGE v1.5, E5, GTE v1, mxbai-embed, Snowflake Arctic Embed",
    classifier=bert_classifier,
    ignorable=_OLD_NAMES,
)
ROBERTA = encoder_family(
    "roberta",
    ("RobertaModel", "XLMRobertaModel", "CamembertModel", "BgeM3EmbeddingModel"),
    _roberta,
    models="RoBERTa, XLM-R, BGE-M3, multilingual E5, BGE rerankers, Arctic Embed L v2",
    defaults={"layer_norm_eps": 1e-12},
    classifier=roberta_classifier,
    ignorable=_OLD_NAMES,
)
DISTILBERT = encoder_family(
    "distilbert",
    ("DistilBertModel",),
    _distilbert,
    models="DistilBERT, msmarco-distilbert, SST-2",
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    classifier=_classifier("pre_classifier", "dense", "relu"),
)
JINA_V2 = encoder_family(
    "jina_bert",
    ("JinaBertModel",),
    _jina_v2,
    models="Jina Embeddings 2 (not the one for code)",
    defaults={"max_position_embeddings": 8192},
    ignorable=(*_OLD_NAMES, r".*\.alibi"),
)
MPNET = encoder_family(
    "mpnet",
    ("MPNetModel",),
    _mpnet,
    models="MPNet, all-mpnet-base-v2, multi-qa-mpnet",
    classifier=roberta_classifier,
)
