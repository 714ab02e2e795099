"""Joins a family's hidden states and a `PoolingHead` to a program."""

from __future__ import annotations

import re
from dataclasses import replace

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.pooling.head import DenseLayer, PoolingHead
from quire.program import Builder, Program, Tensor, Value

_HEADS = (
    "lm_head.", "score.", "classifier.", "pre_classifier.", "head.", "cls.", "predictions.",
    "decoder.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "qa_outputs.",
    "pooler.", "linear.", "dense.", "sparse_linear.", "colbert_linear.", "lm_head_bias",
)  # fmt: skip
"""Beginnings of names of tensors that follow the hidden states, in any checkpoint."""


def pooled_program(family: ModelFamily, reader: ConfigReader, head: PoolingHead) -> Program:
    """Build the program. Raises UnsupportedModelError for a family without hidden states."""
    if family.hidden is None:
        raise UnsupportedModelError(
            f"config.json: {family.architectures[0]} is supported for generation alone; it cannot "
            "give vectors or classes: leave out runner and convert"
        )
    builder = Builder(family.name)
    x = family.hidden(builder, reader)
    with builder.scope("pooler"):
        if head.pooling_type == "mean":
            x = builder.mean_rows(x)
        elif head.pooling_type != "late":
            x = builder.take_rows(x)
        for layer in head.dense:
            x = _dense(builder, x, layer)
        if head.token_rows:
            x = _language_head_rows(builder, x, family, reader, head)
        elif head.num_labels and family.classifier is not None:
            x = family.classifier(builder, reader, x, head)
        elif head.has_inner_layer:
            x = builder.linear(x, "score.0", x.dim, bias=True, hint="score", exact=True)
            x = builder.act(x, "relu")
            x = builder.linear(x, "score.2", head.num_labels, bias=True, hint="score", exact=True)
        elif head.num_labels:
            bias = head.has_bias
            x = builder.linear(x, "score", head.num_labels, bias=bias, hint="score", exact=True)
        if head.pooling_type == "late":
            x = builder.mean_rows(x)
    builder.vectors(x)
    return builder.program()


def _dense(builder: Builder, x: Value, layer: DenseLayer) -> Value:
    if layer.in_features != x.dim:
        raise CheckpointError(
            f"{layer.folder}/config.json: in_features is {layer.in_features}, but the values "
            f"before it have {x.dim} numbers"
        )
    prefix = f"{layer.folder}.linear"
    out = builder.linear(x, prefix, layer.out_features, bias=layer.bias, hint="dense", exact=True)
    return out if layer.activation is None else builder.act(out, layer.activation)


def _language_head_rows(
    builder: Builder, x: Value, family: ModelFamily, reader: ConfigReader, head: PoolingHead
) -> Value:
    """The logits of a few tokens; of two, the second less the first."""
    facts = family.facts(reader)
    wrong = [row for row in head.token_rows if not 0 <= row < facts.vocab_size]
    if wrong:
        raise CheckpointError(f"classifier_from_token has token {wrong[0]}, which the model lacks")
    name = family.names(reader).prefix + "embed_tokens.weight"
    if not facts.tie_word_embeddings:
        name = "lm_head.weight"
    return builder.chosen_rows(x, Tensor(name, (facts.vocab_size, x.dim)), head.token_rows, "score")


def pooled_names(names: NameMap, program: Program) -> NameMap:
    """The names of a checkpoint whose head the program may lack: what it does not use is left
    out."""
    used = {part.name for param in program.params() for part in param.parts}
    folders = {name.partition(".")[0] + "." for name in used if name[:1].isdigit()}
    top = (*names.top_level, *(one for one in _HEADS if one not in names.top_level), *folders)
    unused = []
    for beginning in _HEADS:
        for prefix in ("", names.prefix):
            if not any(name.startswith(prefix + beginning) for name in used):
                unused.append(re.escape(prefix + beginning) + ".*")
    return replace(names, top_level=top, ignorable=(*names.ignorable, *unused))
