"""Model families: they turn a config.json into a program, sizes and tensor names.

    ModelDescription           all that config.json says of a model, typed and interpreted once
    build_program(hf_config)   its `program`; likewise model_facts and name_map
    shipped_format(hf_config)  how a quantised checkpoint holds its matrices
    quantisation_of(hf_config) the description of the quantisation, wherever it is written
    as_asked(hf_config, name)  config.json of a quantised checkpoint, for a value of `quantization`
    ModelRegistry              the known architectures; register_model adds one
    is_transformers(hf_config) whether transformers' modules compute the model, not a family

A multimodal checkpoint has the configuration of its text model in a separate section
(`text_part`): only that model is built.

`hf_config` is config.json as read. All raise CheckpointError for a missing or impossible key
and UnsupportedModelError for an architecture or feature that is not implemented.
"""

from __future__ import annotations

from quire.models.base import HfConfig, ModelFacts, ModelFamily, NameMap
from quire.models.description import ModelDescription
from quire.models.quantised import (
    GGUF_FORMATS,
    BlockFormats,
    Expanded,
    Shipped,
    as_asked,
    as_expanded,
    quantisation_of,
    shipped_format,
    with_order,
    with_plain,
)
from quire.models.registry import ModelRegistry
from quire.models.text_part import with_tied_head
from quire.models.transformers.mark import is_transformers
from quire.program import Program

__all__ = [
    "BlockFormats", "Expanded", "GGUF_FORMATS", "ModelDescription", "ModelFamily", "ModelFacts",
    "ModelRegistry", "NameMap", "Shipped", "as_asked", "as_expanded", "build_program",
    "is_transformers", "model_facts", "name_map", "quantisation_of", "shipped_format", "with_order",
    "with_plain", "with_tied_head",
]  # fmt: skip


def build_program(hf_config: HfConfig) -> Program:
    """`ModelDescription.program`."""
    return ModelDescription(hf_config).program


def model_facts(hf_config: HfConfig) -> ModelFacts:
    """`ModelDescription.facts`."""
    return ModelDescription(hf_config).facts


def name_map(hf_config: HfConfig) -> NameMap:
    """`ModelDescription.names`."""
    return ModelDescription(hf_config).names
