"""Model families: they turn a config.json into a program, sizes and tensor names.

    build_program(hf_config)   the Program that a backend compiles
    model_facts(hf_config)     sizes for config resolution and KV planning, no program built
    name_map(hf_config)        checkpoint tensor names -> the names in Param.parts
    shipped_format(hf_config)  the format of a quantised checkpoint's matrices
    quantisation_of(hf_config) the section that describes the quantisation
    as_asked(hf_config, name)  config.json of a quantised checkpoint, for a value of `quantization`
    ModelRegistry              the known architectures; register_model adds one
    is_transformers(hf_config) whether transformers' modules compute the model, not a family

A multimodal checkpoint has the configuration of its text model in a separate section
(`text_part`): only that model is built.

`hf_config` is config.json as read. All raise CheckpointError for a missing or impossible key
and UnsupportedModelError for an architecture or feature that is not implemented.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.models.base import HfConfig, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
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
    with_shipped_formats,
)
from quire.models.registry import ModelRegistry, resolve
from quire.models.text_part import has_other_parts, text_part, with_tied_head
from quire.models.transformers.mark import is_transformers
from quire.program import Program

if TYPE_CHECKING:
    from quire.models.transformers.outline import Outline

__all__ = [
    "BlockFormats", "Expanded", "GGUF_FORMATS", "ModelFamily", "ModelFacts", "ModelRegistry",
    "NameMap", "Shipped", "as_asked", "as_expanded", "build_program", "family_of",
    "is_transformers", "model_facts", "name_map", "quantisation_of", "shipped_format", "with_order",
    "with_plain", "with_tied_head",
]  # fmt: skip


def family_of(hf_config: HfConfig) -> ModelFamily:
    """Return the family of the checkpoint's architecture."""
    return resolve(ModelRegistry, text_part(hf_config), has_other_parts(hf_config))


def build_program(hf_config: HfConfig) -> Program:
    """Build the model's program; the matrices of a quantised checkpoint have its format."""
    if is_transformers(hf_config):
        return _outline(hf_config).program
    program = family_of(hf_config).build(ConfigReader(text_part(hf_config)))
    shipped = shipped_format(hf_config)
    if shipped is None or isinstance(shipped, Expanded):
        return program
    return with_shipped_formats(program, shipped)


def model_facts(hf_config: HfConfig) -> ModelFacts:
    """Return the model's sizes."""
    if is_transformers(hf_config):
        return _outline(hf_config).facts
    return family_of(hf_config).facts(ConfigReader(text_part(hf_config)))


def name_map(hf_config: HfConfig) -> NameMap:
    """Return the mapping from this checkpoint's tensor names to the program's. Models that run on
    transformers keep their names: transformers maps them itself."""
    if is_transformers(hf_config):
        return NameMap("", (), ())
    names = family_of(hf_config).names(ConfigReader(text_part(hf_config)))
    return replace(names, has_other_parts=has_other_parts(hf_config))


def _outline(hf_config: HfConfig) -> Outline:
    from quire.models.transformers.outline import outline  # imports torch

    return outline(hf_config)
