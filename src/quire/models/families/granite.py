"""Granite 3 and MiniCPM: Llama with factors on the embedding, the residual stream and the
logits."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_HIDDEN, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import read_factor, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec


def granite_spec(reader: ConfigReader) -> DecoderSpec:
    """Read Llama's spec with Granite's factors."""
    refuse_layer_types(reader)
    return with_factors(reader, read_spec(reader))


def with_factors(reader: ConfigReader, spec: DecoderSpec) -> DecoderSpec:
    """Set the factors of the embedding, of q.k, of the blocks' outputs and of the logits."""
    scale = read_factor(reader, "attention_multiplier")
    of_embedding = read_factor(reader, "embedding_multiplier")
    return replace(
        spec,
        attention=replace(spec.attention, scale=scale),
        embed_scale=of_embedding,
        given_scale=of_embedding,
        residual_scale=read_factor(reader, "residual_multiplier"),
        logits_scale=1.0 / read_factor(reader, "logits_scaling"),
    )


def _minicpm(reader: ConfigReader) -> DecoderSpec:
    reader.count("num_experts", 0, default=0)
    return with_minicpm_factors(reader, read_spec(reader))


def with_minicpm_factors(reader: ConfigReader, spec: DecoderSpec) -> DecoderSpec:
    """Set MiniCPM's factors. The hidden state is divided by D / dim_model_base before the head."""
    base = reader.size("dim_model_base", MAX_HIDDEN, example=256, default=spec.hidden_size)
    return replace(
        spec,
        embed_scale=read_factor(reader, "scale_emb"),
        residual_scale=read_factor(reader, "scale_depth") / spec.num_layers**0.5,
        logits_scale=base / spec.hidden_size,
    )


FAMILY = decoder_family(
    "granite", ("GraniteForCausalLM",), granite_spec, models="Granite 3, dense models"
)
MINICPM = decoder_family(
    "minicpm",
    ("MiniCPMForCausalLM",),
    _minicpm,
    models="MiniCPM 1, 2 and 4, dense models",
    defaults={"tie_word_embeddings": True},
)
