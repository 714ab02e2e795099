"""`RopeConfig`: the rope settings of one checkpoint, whatever form its config.json has.

Three forms are read: `rope_theta` with `rope_scaling`, which has `rope_type` or the older `type`;
and `rope_parameters`, which holds all of it (transformers 5), for each kind of layer in some
families. `rope_scaling` counts if both are there, as in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.models.config_reader import MAX_POSITIONS, ConfigReader

SPELLINGS = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "ntk": "ntk",
    "yarn": "yarn",
    "longrope": "longrope",
    "llama3": "llama3",
    "proportional": "proportional",
    "su": "longrope",
    "mrope": "default",
    "deepseek_yarn": "yarn",
}
"""Values of `rope_type`; `su` is the first name of longrope, `deepseek_yarn` is vLLM's name."""
LAYER_KINDS = ("full_attention", "sliding_attention")
SHORT_FACTORS = "quire_short_rope_factors"
"""The key of config.json that selects the short factors of longrope. Planning sets it, so that the
worker builds the same program, and stored K/V of the two kinds have different names."""
_MAX_FACTOR = 1e4
_ORIGINAL = "original_max_position_embeddings"
_STATES_ITS_LENGTH = "gemma3"
"""Model types with this in their name give max_position_embeddings with the scaling. Source: vLLM,
`_get_and_verify_max_len`."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE settings, read from any of the three forms."""

    kind: str
    theta: float
    part: float
    """Share of a head that is rotated."""
    max_positions: int
    """max_position_embeddings."""
    original_positions: int
    """Length in training, before scaling (yarn, longrope and llama3)."""
    states_original: bool
    """Whether config.json gives the length in training."""
    scaling: ConfigReader
    """The object that contains the scaling's keys."""
    is_short: bool
    """Whether longrope takes its short factors."""
    dim: int = 0
    """Number of rotated dimensions per head."""
    head_dim: int = 0
    """H."""

    def factor(self) -> float:
        """Factor of the context extension. yarn and longrope may omit it: then max / original
        positions."""
        may_lack = self.kind in ("yarn", "longrope")
        implied = self.max_positions / self.original_positions if may_lack else None
        return self.scaling.number("factor", 1e-3, _MAX_FACTOR, example=2.0, default=implied)


@dataclass(frozen=True, slots=True)
class ContextLengths:
    """Lengths of the context in tokens, which follow from the rope settings."""

    longest: int
    short: int | None = None
    """Up to this length longrope takes its short factors; None: there is one set of frequencies."""


def context_lengths(reader: ConfigReader) -> ContextLengths:
    """Return the lengths. linear, dynamic and ntk scaling extend max_position_embeddings. yarn
    extends its original length, if config.json gives it, unless max_position_embeddings is longer;
    the others state the extended length.

    Source: vLLM 0.33, `_get_and_verify_max_len`, which takes max_position_embeddings with yarn, and
    so refuses the longer contexts that Qwen documents.
    """
    config = read_rope(reader, by_layer(reader).section("full_attention"))
    longest = config.max_positions
    if config.kind == "longrope":
        return ContextLengths(longest, min(config.original_positions, longest))
    has_own_base = config.kind == "dynamic" and config.scaling.has("alpha")
    is_stated = _STATES_ITS_LENGTH in (reader.text("model_type") or "")
    if config.scaling.has("factor") and not has_own_base and not is_stated:
        if config.kind in ("linear", "dynamic", "ntk"):
            longest = int(longest * config.factor())
        elif config.kind == "yarn" and config.states_original:
            longest = max(longest, int(config.original_positions * config.factor()))
    return ContextLengths(max(1, min(longest, MAX_POSITIONS)))


def by_layer(reader: ConfigReader) -> ConfigReader:
    """Return the object with the rope parameters of each kind of layer; an empty one if there is
    none. Raises UnsupportedModelError if there is a scaling for all layers, too."""
    for name in ("rope_parameters", "rope_scaling"):
        found = reader.section(name)
        if found is None or not any(found.has(kind) for kind in LAYER_KINDS):
            continue
        other = "rope_scaling" if name == "rope_parameters" else "rope_parameters"
        if reader.section(other) is not None:
            raise UnsupportedModelError(
                f"{reader.where}: {name} is given for each kind of layer, and {other} for all "
                f"layers; leave {other} out"
            )
        return found
    return ConfigReader({}, reader.where)


def rope_section(reader: ConfigReader) -> ConfigReader | None:
    """Return the object with the scaling, which is the same for all layers; None: there is
    none."""
    return reader.section("rope_scaling") or reader.section("rope_parameters")


def read_rope(reader: ConfigReader, scaling: ConfigReader | None = None) -> RopeConfig:
    """Read the settings. `scaling`: an object to read instead of the default. Raises
    UnsupportedModelError for an unknown scaling."""
    scaling = scaling or rope_section(reader) or ConfigReader({}, reader.where)
    for key in LAYER_KINDS:
        if scaling.has(key):
            raise UnsupportedModelError(f"{scaling.where}: {key} is not supported here")
    name = "rope_type" if scaling.has("rope_type") else "type"
    kind = scaling.choice(name, SPELLINGS, default="default")
    if kind == "yarn" and scaling.has("long_factor"):  # the second name of longrope, in Phi 3
        kind = "longrope"
    max_positions = reader.size("max_position_embeddings", MAX_POSITIONS, example=4096)
    top = reader if reader.has(_ORIGINAL) else scaling
    original = top.size(_ORIGINAL, MAX_POSITIONS, example=8192, default=max_positions)
    values = _Values(reader, scaling)
    return RopeConfig(
        kind=kind,
        theta=values.number("rope_theta", 1.0001, 1e12, 10000.0, 10000.0),
        part=values.number("partial_rotary_factor", 0.0, 1.0, 0.5, 1.0),
        max_positions=max_positions,
        original_positions=original,
        states_original=top.has(_ORIGINAL),
        scaling=scaling,
        is_short=reader.flag(SHORT_FACTORS, False) or max_positions <= original,
    )


class _Values:
    """Numbers that the scaling has, or config.json itself, or the object that `rope_scaling`
    replaces."""

    def __init__(self, reader: ConfigReader, scaling: ConfigReader) -> None:
        whole = reader.section("rope_parameters")
        self._readers = [reader for reader in (scaling, reader, whole) if reader is not None]

    def number(self, key: str, low: float, high: float, example: float, default: float) -> float:
        found = next((one for one in self._readers if one.has(key)), self._readers[0])
        return found.number(key, low, high, example=example, default=default)


def is_by_layer(value: Mapping[str, Any]) -> bool:
    """Whether rope parameters are given for each kind of layer."""
    return any(kind in value for kind in LAYER_KINDS)
