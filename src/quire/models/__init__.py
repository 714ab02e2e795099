"""Model families: from config.json to a program, sizes and tensor names.

    build_program(hf_config)   the Program that a backend compiles
    model_facts(hf_config)     sizes for config resolution and KV planning, no program built
    name_map(hf_config)        checkpoint tensor names -> the names in Param.parts
    ModelRegistry              the known architectures; register_model adds one

`hf_config` is config.json as read. All raise CheckpointError for a missing or impossible key
and UnsupportedModelError for an architecture or feature that is not implemented.
"""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.models.base import HfConfig, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.registry import ModelRegistry, architectures_of
from quire.program import Program

__all__ = [
    "ModelFamily", "ModelFacts", "ModelRegistry", "NameMap", "build_program", "family_of",
    "model_facts", "name_map",
]  # fmt: skip


def family_of(hf_config: HfConfig) -> ModelFamily:
    """The family of the checkpoint's architecture."""
    reader = ConfigReader(hf_config)
    _refuse_quantised(reader)
    return ModelRegistry.resolve(architectures_of(hf_config))


def build_program(hf_config: HfConfig) -> Program:
    """The model as a program."""
    return family_of(hf_config).build(ConfigReader(hf_config))


def model_facts(hf_config: HfConfig) -> ModelFacts:
    """The model's sizes."""
    return family_of(hf_config).facts(ConfigReader(hf_config))


def name_map(hf_config: HfConfig) -> NameMap:
    """How this checkpoint's tensor names map to the program's."""
    return family_of(hf_config).names(ConfigReader(hf_config))


def _refuse_quantised(reader: ConfigReader) -> None:
    if reader.has("quantization_config"):
        raise UnsupportedModelError(
            f"{reader.where} has a quantization_config: quantised checkpoints are not supported; "
            "use the unquantised one"
        )
