"""Model families: from config.json to a program, sizes and tensor names.

    build_program(hf_config)   the Program that a backend compiles
    model_facts(hf_config)     sizes for config resolution and KV planning, no program built
    name_map(hf_config)        checkpoint tensor names -> the names in Param.parts
    shipped_format(hf_config)  how a quantised checkpoint holds its matrices
    as_asked(hf_config, name)  config.json of a GGUF file, for a value of `quantization`
    ModelRegistry              the known architectures; register_model adds one

A checkpoint with images or sound has the configuration of its text model in a section of its own
(`text_part`): that model is built, and the other parts are left out.

`hf_config` is config.json as read. All raise CheckpointError for a missing or impossible key
and UnsupportedModelError for an architecture or feature that is not implemented.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.base import HfConfig, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.registry import ModelRegistry, resolve
from quire.models.shipped.block_formats import GGUF_FORMATS, BlockFormats, as_asked
from quire.models.shipped.program import with_shipped_formats
from quire.models.shipped.quantised import Shipped, shipped_format
from quire.models.text_part import has_other_parts, text_part
from quire.program import Program

__all__ = [
    "BlockFormats", "GGUF_FORMATS", "ModelFamily", "ModelFacts", "ModelRegistry", "NameMap",
    "Shipped", "as_asked", "build_program", "family_of", "model_facts", "name_map",
    "shipped_format",
]  # fmt: skip


def family_of(hf_config: HfConfig) -> ModelFamily:
    """The family of the checkpoint's architecture."""
    return resolve(ModelRegistry, text_part(hf_config), has_other_parts(hf_config))


def build_program(hf_config: HfConfig) -> Program:
    """The model as a program; a matrix that the checkpoint holds quantised has its format."""
    program = family_of(hf_config).build(ConfigReader(text_part(hf_config)))
    shipped = shipped_format(hf_config)
    return program if shipped is None else with_shipped_formats(program, shipped)


def model_facts(hf_config: HfConfig) -> ModelFacts:
    """The model's sizes."""
    return family_of(hf_config).facts(ConfigReader(text_part(hf_config)))


def name_map(hf_config: HfConfig) -> NameMap:
    """How this checkpoint's tensor names map to the program's."""
    names = family_of(hf_config).names(ConfigReader(text_part(hf_config)))
    return replace(names, has_other_parts=has_other_parts(hf_config))
