"""`ModelDescription`: what config.json says of a model, interpreted once and typed.

Planning makes one for each checkpoint, and the worker one for the model that it loads. Nothing else
needs to read the raw mapping, whose keys differ between families, and between checkpoints with and
without images or sound.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.models.base import HfConfig, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.heads.mark import MARK, is_head, without_head
from quire.models.pooling.head import pooling_head
from quire.models.pooling.program import pooled_names, pooled_program
from quire.models.quantised import (
    BlockFormats,
    Expanded,
    Shipped,
    shipped_format,
    with_shipped_formats,
)
from quire.models.registry import ModelRegistry, resolve
from quire.models.text_part import has_other_parts, text_part
from quire.models.transformers.mark import is_transformers

if TYPE_CHECKING:
    from quire.models.heads.target import HeadProgram, Target
    from quire.models.transformers.outline import Outline
    from quire.program import Program


@dataclass(frozen=True)
class ModelDescription:
    """Each property is computed at its first use. All raise CheckpointError for a missing or
    impossible key, and UnsupportedModelError for an architecture or feature that is not
    implemented."""

    hf_config: HfConfig
    """config.json as read."""

    @cached_property
    def text(self) -> HfConfig:
        """The configuration of the text model: a section of its own in some checkpoints."""
        return text_part(self.hf_config)

    @cached_property
    def has_other_parts(self) -> bool:
        """Whether the checkpoint has more than a text model; the other parts are not used."""
        return has_other_parts(self.hf_config)

    @property
    def is_transformers(self) -> bool:
        """Whether transformers computes the model, and no family."""
        return is_transformers(self.hf_config)

    @cached_property
    def head(self) -> HeadProgram | None:
        """The draft head that the configuration describes; None: it is that of a model."""
        reader = ConfigReader(self.text)
        mark = reader.section(MARK) if is_head(self.hf_config) else None
        if mark is None:
            return None
        from quire.models.heads.target import Target

        target = self._target
        return head_program(
            mark.text("method"),
            Target(ConfigReader(target.text), target.family, target.facts, target.program),
            reader,
        )

    @cached_property
    def _target(self) -> ModelDescription:
        """The model for which a head drafts."""
        return ModelDescription(without_head(self.text[MARK]["target"]))

    @cached_property
    def family(self) -> ModelFamily:
        """The family of the checkpoint's architecture."""
        return resolve(ModelRegistry, self.text, self.has_other_parts)

    @cached_property
    def shipped(self) -> Shipped | BlockFormats | Expanded | None:
        """Storage of a quantised checkpoint's matrices; None: it is not quantised. A draft head
        uses matrices of its model's GGUF file as they are."""
        found = shipped_format(self.hf_config)
        if found is None and is_head(self.hf_config):
            of_target = self._target.shipped
            return of_target if isinstance(of_target, BlockFormats) else None
        return found

    @cached_property
    def program(self) -> Program:
        """The model as a program, before any pass; a matrix that the checkpoint holds quantised has
        its format."""
        if self.is_transformers:
            return self._outline.program
        reader, head = ConfigReader(self.text), pooling_head(self.hf_config)
        if self.head is not None:
            program = self.head.program
        elif head is None:
            program = self.family.build(reader)
        else:
            program = pooled_program(self.family, reader, head)
        if self.shipped is None or isinstance(self.shipped, Expanded):
            return program
        return with_shipped_formats(program, self.shipped)

    @cached_property
    def facts(self) -> ModelFacts:
        """The model's sizes; no program is built for them. Of a draft head, those of its model."""
        if is_head(self.hf_config):
            return self._target.facts
        if self.is_transformers:
            return self._outline.facts
        return self.family.facts(ConfigReader(self.text))

    @cached_property
    def names(self) -> NameMap:
        """Map from the checkpoint's tensor names to the names in `Param.parts`. Names of a model
        that transformers computes stay as they are: it maps them itself."""
        if is_head(self.hf_config):
            return self._target.names
        if self.is_transformers:
            return NameMap("", (), ())
        names = self.family.names(ConfigReader(self.text))
        if pooling_head(self.hf_config) is not None:
            names = pooled_names(names, self.program)
        return replace(names, has_other_parts=names.has_other_parts or self.has_other_parts)

    @cached_property
    def _outline(self) -> Outline:
        from quire.models.transformers.outline import outline  # imports torch

        return outline(self.hf_config)


_HEADS = {
    "eagle": "eagle:eagle_head",
    "eagle3": "eagle:eagle3_head",
    "medusa": "medusa:medusa_head",
    "mtp": "mtp:mtp_head",
}
"""Modules and functions, by the methods of `speculative_config`."""


def head_program(method: str | None, target: Target, reader: ConfigReader) -> HeadProgram:
    """The head with its config.json. Raises CheckpointError or UnsupportedModelError."""
    place = _HEADS.get(method or "")
    if place is None:
        raise CheckpointError(f"{reader.where} is not that of a draft head: method {method!r}")
    module, _, name = place.partition(":")
    build: Callable[[Target, ConfigReader], HeadProgram] = getattr(
        importlib.import_module(f"quire.models.heads.{module}"), name
    )
    return build(target, reader)
