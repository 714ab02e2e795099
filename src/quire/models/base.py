"""The interface of a model family: `ModelFamily`, `ModelFacts`, and `NameMap` for tensor names.

`weights/binding.py` maps a checkpoint's names by `NameMap`; `planning` reads `ModelFacts`. This
module does not know tensor contents or devices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.images.modality import MODALITIES, Modality
from quire.models.config_reader import ConfigReader
from quire.program import Activation, Builder, Program, Value

if TYPE_CHECKING:
    from quire.config.pooling import PoolingType
    from quire.models.pooling.head import PoolingHead
    from quire.models.spec import DecoderSpec

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "gelu_quick",
    "relu2": "relu2",
}
"""Maps names in config.json to the program's activations."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's sizes from config.json, without building its program. All are checked."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    """Longest context that the positions allow, with rope scaling, computed as in vLLM."""
    sliding_window: int | None
    """The window, if every layer has one; None if a layer sees all positions."""
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool
    num_sources: int = 0
    """Positions of `max_model_len` that are rows of an encoder, before those of the text."""
    short_rope_len: int | None = None
    """Up to this `max_model_len` longrope takes its short factors; None: there is one set of
    frequencies."""


@dataclass(frozen=True, slots=True)
class NameMap:
    """Maps the tensor names of a family's checkpoints to the canonical ones in `Param.parts`.

    The base model is saved under several prefixes (`transformer.h.0...`, or bare `h.0...`). The
    canonical name has `prefix`. Top-level tensors (`lm_head.weight`) have no prefix.
    """

    prefix: str
    """Canonical prefix of the base model, with its dot: `model.`"""
    other_prefixes: tuple[str, ...]
    """Other possible prefixes, longest first. The empty prefix is always accepted."""
    ignorable: tuple[str, ...]
    """Regular expressions of canonical names that are not loaded (buffers, tied heads)."""
    top_level: tuple[str, ...] = ("lm_head.",)
    has_other_parts: bool = False
    """Whether the checkpoint is multimodal: it has other parts, and its text part has a prefix."""
    prediction_layers: tuple[str, ...] = ()
    """Prefixes of the layers for multi-token prediction."""

    renamed: tuple[tuple[str, str], ...] = ()
    """Other endings of names in checkpoints, with the canonical ones."""

    def canonical(self, name: str) -> str | None:
        """Return the canonical name, which the program may lack; None for a tensor that is not
        loaded."""
        if self.part_left_out(name) is not None:
            return None
        name = self._without_wrapper(name)
        for old, new in self.renamed:
            if name.endswith(old):
                name = name.removesuffix(old) + new
        bare = name
        for prefix in (self.prefix, *self.other_prefixes):
            if name.startswith(prefix):
                bare = name[len(prefix) :]
                break
        full = bare if bare.startswith(self.top_level) else f"{self.prefix}{bare}"
        if any(re.fullmatch(pattern, full) for pattern in self.ignorable):
            return None
        return full

    def part_left_out(self, name: str) -> str | None:
        """Return the unused part of the checkpoint that the tensor belongs to, or None."""
        if name.startswith(("mtp.", "model.mtp_", *self.prediction_layers)):
            return "mtp"
        if not self.has_other_parts or name != self._without_wrapper(name):
            return None
        if name.startswith((self.prefix, *self.top_level)):
            inner = name.removeprefix("model.")
            found = next((part for part in _OTHER_PARTS if inner.startswith(part)), None)
            return None if found is None else found.rstrip("._")
        return name.removeprefix("model.").partition(".")[0]

    def summary(self, names: Iterable[str], encoded: Modality | None = None) -> str | None:
        """Return a message about the unused parts of a checkpoint with these tensors; None if there
        are none. `encoded`: what is computed, too."""
        counts = Counter(part for name in names if (part := self.part_left_out(name)) is not None)
        used = f"text and {encoded.plural} are" if encoded else "the text model is"
        unseen = {""}
        if encoded is not None:
            unseen = {"mtp", *(one.tensors for one in MODALITIES.values())} - {encoded.tensors}
        parts = ", ".join(
            f"{part} ({count} tensors)"
            for part, count in sorted(counts.items())
            if any(mark in part for mark in unseen)
        )
        return f"only {used} computed; unused: {parts}" if parts else None

    def _without_wrapper(self, name: str) -> str:
        if not self.has_other_parts:
            return name
        for prefix in _WRAPPERS:
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                is_top = rest.startswith((self.prefix, *self.top_level))
                return rest if is_top else self.prefix + rest
        return name


_WRAPPERS = (
    "model.language_model.",
    "language_model.",
    "model.text_model.",
    "text_model.",
    "model.llm.",
    "llm.",
)
"""Prefixes of the text part in checkpoints that have other parts."""
_OTHER_PARTS = (
    "visual.",
    "multi_modal_projector.",
    "connector.",
    *(f"{one.stem}_" for one in MODALITIES.values()),
    *(f"embed_{one.stem}." for one in MODALITIES.values()),
)
"""Name prefixes of other parts below the text part's own prefix."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One model family: four functions of config.json, called through `models.registry`.

    Each raises CheckpointError for a missing or impossible key, and UnsupportedModelError
    for a feature that is not implemented.
    """

    name: str
    architectures: tuple[str, ...]
    build: Callable[[ConfigReader], Program]
    facts: Callable[[ConfigReader], ModelFacts]
    names: Callable[[ConfigReader], NameMap]
    models: str = ""
    """Well-known models of the family, for users."""
    hidden: Callable[[Builder, ConfigReader], Value] | None = None
    """Writes the model up to its last hidden states, for models that pool. None: it cannot."""
    classifier: Callable[[Builder, ConfigReader, Value, PoolingHead], Value] | None = None
    """Writes the classes of the pooled states, where that is not the linear layer `score`."""
    classifier_pooling: Callable[[ConfigReader], PoolingType] | None = None
    """Which state is classified; None: the last token's."""
    spec: Callable[[ConfigReader], DecoderSpec] | None = None
    """Reads the spec of a decoder, whose layers draft heads have too. None: there is none."""
    is_encoder: bool = False
    """Whether tokens see later ones, so that the family cannot generate."""


HfConfig = Mapping[str, Any]
