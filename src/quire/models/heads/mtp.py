"""Layers for multi-token prediction, which are part of a model's own checkpoint: those of
Qwen3-Next and Qwen3.5, and those of DeepSeek-V3 and models with its names. GGUF files have these
names for all models.

A layer reads the norms of a token's embedding and of the model's last hidden state before this
token. Its product with both is the residual stream of one decoder layer. Embedding and head are
the model's own. Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2. Of several layers the first
one drafts all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from quire.errors import UnsupportedModelError
from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import norm_rows, write_layer
from quire.models.heads.target import HeadProgram, Target
from quire.models.spec import DecoderSpec
from quire.program import Builder

_T = TypeVar("_T")
_QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of tensors."""

    embed_norm: str
    hidden_norm: str
    project: str
    final_norm: str


def mtp_head(target: Target, reader: ConfigReader) -> HeadProgram:
    """The first layer for multi-token prediction of a model. `reader`: its config.json."""
    family = target.family
    if family.spec is None:
        raise UnsupportedModelError(f"method mtp is not supported for {family.name}")
    spec = family.spec(target.reader)
    is_further = reader.count("num_nextn_predict_layers", MAX_LAYERS, default=0) > 0
    if family.name in _QWEN and not is_further:
        prefix, number = "mtp.", 0
        fc = _Names("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        names = replace(spec.names, root=prefix)
    else:
        if not is_further:
            raise UnsupportedModelError(
                f"{reader.where}: num_nextn_predict_layers must be 1 or more for method mtp: the "
                "checkpoint has no layers for multi-token prediction"
            )
        number, names = spec.num_layers, spec.names
        prefix = f"{names.root}{names.layers}.{number}."
        fc = _Names("enorm", "hnorm", "eh_proj", "shared_head.norm")
    spec = replace(_with_layer(spec, number), names=names)
    builder = Builder(f"{family.name}_mtp")
    embedded = target.embed(builder)
    [hidden] = builder.rows_in(spec.hidden_size)
    pair = builder.join_heads(
        norm_rows(builder, embedded, spec, prefix + fc.embed_norm, "embed_norm"),
        norm_rows(builder, hidden, spec, prefix + fc.hidden_norm, "hidden_norm"),
        1,
        "pair",
    )
    x = builder.linear(pair, prefix + fc.project, spec.hidden_size, bias=False, hint="project")
    with builder.scope("layers.0"):
        x = write_layer(builder, x, spec, number)
    x = builder.take_rows(x)
    normed = norm_rows(builder, x, spec, prefix + fc.final_norm, "norm")
    builder.rows_out(normed if family.name in _QWEN else x)
    target.end(builder, normed)
    return HeadProgram(builder.program(), ())


def _with_layer(spec: DecoderSpec, number: int) -> DecoderSpec:
    """The spec with a layer of this number that is like the last one with attention."""
    like = spec.num_layers - 1
    if spec.mixers and None in spec.mixers:
        like = max(i for i, mixer in enumerate(spec.mixers) if mixer is None)

    def grown(values: tuple[_T, ...]) -> tuple[_T, ...]:
        return (*values[:number], values[like]) if values else ()

    attention = spec.attention
    return replace(
        spec,
        attention=replace(
            attention, windows=grown(attention.windows), rotaries=grown(attention.rotaries)
        ),
        experts=grown(spec.experts),
        mixers=grown(spec.mixers),
        parts=grown(spec.parts),
    )
