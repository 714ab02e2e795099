"""Reads fields of config.json that families of encoders share."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.base import ACTIVATIONS
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.pooling.encoder import EncoderNames, EncoderSpec
from quire.models.reading import split_heads
from quire.models.rope import rotary
from quire.program import HeadLayout

_MAX_TYPES = 64
ROTARY = ("rotary", "rope", "absolute")
"""Values of position_embedding_type; the configurations of these classes may have any of them."""
FLASH = EncoderNames(
    embed_norm="emb_ln",
    layers="encoder.layers",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    attention_norm="norm1",
    up="mlp.fc11",
    gate="mlp.fc12",
    down="mlp.fc2",
    mlp_norm="norm2",
)
"""The names of BERT in the flash-attention package, which Nomic and Jina have kept."""


def read_encoder(
    reader: ConfigReader, root: str, positions: tuple[str, ...] = ("absolute",)
) -> EncoderSpec:
    """Read BERT's spec; families change the result. `positions`: the family's values of
    position_embedding_type."""
    kind = reader.text("position_embedding_type") or positions[0]
    if kind not in positions:
        raise UnsupportedModelError(
            f"{reader.where}: position_embedding_type {kind!r} is not supported here"
        )
    hidden_size = reader.size("hidden_size", MAX_HIDDEN, example=768)
    num_positions = reader.size("max_position_embeddings", MAX_POSITIONS, example=512)
    return EncoderSpec(
        num_layers=reader.size("num_hidden_layers", MAX_LAYERS, example=12),
        hidden_size=hidden_size,
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=30522),
        heads=_heads(reader, hidden_size, is_rotary=positions == ROTARY),
        mlp_size=reader.size("intermediate_size", MAX_FEED_FORWARD, example=3072),
        activation=reader.choice("hidden_act", ACTIVATIONS, default="gelu"),
        eps=reader.number("layer_norm_eps", 0.0, 1.0, example=1e-12, default=1e-12),
        max_model_len=num_positions,
        position_rows=num_positions,
        num_types=reader.count("type_vocab_size", _MAX_TYPES, default=2),
        names=EncoderNames(root=root),
    )


def _heads(reader: ConfigReader, hidden_size: int, *, is_rotary: bool) -> HeadLayout:
    """The heads; those with rotary positions may have any width."""
    num_heads = reader.size("num_attention_heads", MAX_HEADS, example=12)
    if not is_rotary or not reader.has("head_dim"):
        return split_heads(reader, hidden_size, num_heads)
    head_dim = reader.size("head_dim", MAX_HEAD_DIM, example=64)
    return HeadLayout(num_heads, num_heads, head_dim)


def rotated(reader: ConfigReader, spec: EncoderSpec) -> EncoderSpec:
    rotation = rotary(reader, spec.heads.head_dim)
    return replace(spec, rotaries=(rotation,) * spec.num_layers)


def jina_v3(reader: ConfigReader) -> EncoderSpec:
    """Read Jina Embeddings 3, which is XLM-R with rotary positions."""
    names = replace(
        FLASH, root="roberta.", qkv="mixer.Wqkv", out="mixer.out_proj", up="mlp.fc1", gate=""
    )
    spec = rotated(reader, read_encoder(reader, names.root, ROTARY))
    return replace(spec, position_rows=0, names=names)
