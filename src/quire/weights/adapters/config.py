"""`PeftConfig`: an adapter's adapter_config.json.

Source: huggingface/peft, `tuners/lora/config.py` and `tuners/lora/layer.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config.checkpoint.expressions import Expressions
from quire.config.checkpoint.model_files import has_file, read_json_object
from quire.errors import CheckpointError, quoted
from quire.units import MiB

CONFIG_NAME = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 * MiB
MAX_RANK = 65536
"""Far above any published adapter."""
_MAX_NUMBER = 1e9
_REQUIRED = ("r", "lora_alpha", "target_modules")
_REFUSED: dict[str, str] = {
    "alora_invocation_tokens": "adapters that begin at certain tokens (aLoRA)",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal adapters",
    "use_qalora": "QA-LoRA",
    "trainable_token_indices": "retrained tokens",
    "arrow_config": "adapters that are chosen by Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
"""Keys that must be empty, with what they ask for."""
_KEPT_BASE = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Initialisations that did not change the base weights. After others the adapter fits other
weights."""
_WORD = re.compile(r"[A-Za-z0-9_.\\-]+")


class PatternTable:
    """Numbers by names of modules, or by regular expressions of their ends. The first key that
    matches the end of a module's name counts. `where`: the file and field for errors."""

    def __init__(self, numbers: Mapping[str, float], where: str) -> None:
        self._names: dict[str, tuple[float, float]] = {}
        """With the place of each among all keys."""
        self._keys: list[tuple[int, str, float]] = []
        """Those that are expressions, with their places."""
        self._expressions = Expressions(where)
        for place, (key, number) in enumerate(numbers.items()):
            name = re.sub(r"\\(\W)", r"\1", key)
            if "\\" not in name and _WORD.fullmatch(name):
                self._names.setdefault(name, (place, number))
            else:
                self._expressions.check(key)
                self._keys.append((place, key, number))

    def of(self, module: str, default: float) -> float:
        """The number of a module."""
        words = module.split(".")
        ends = (".".join(words[first:]) for first in range(len(words)))
        named = (self._names[end] for end in ends if end in self._names)
        place, found = min(named, default=(math.inf, default))
        for at, key, number in self._keys:
            if at < place and self._expressions.match_end(key, module):
                return number
        return found


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The numbers of an adapter's configuration."""

    path: Path
    rank: int
    alpha: float
    is_rank_stabilised: bool
    rank_pattern: PatternTable
    alpha_pattern: PatternTable
    has_magnitudes: bool
    """DoRA."""
    saved: tuple[str, ...] = ()
    """Names of modules, or of what contains them, that are stored whole (`modules_to_save`)."""

    def rank_of(self, module: str) -> int:
        """The rank of a module."""
        return int(self.rank_pattern.of(module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of B A x."""
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.of(module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def read_config(folder: Path) -> PeftConfig:
    """Reads adapter_config.json. Raises CheckpointError for a configuration that is wrong, or that
    asks for something that is not supported."""
    path = folder / CONFIG_NAME
    if not has_file(path):
        raise CheckpointError(f"{folder} is not an adapter: it has no {CONFIG_NAME}")
    fields = read_json_object(path, max_bytes=_MAX_CONFIG_BYTES)
    kind = fields.get("peft_type", "LORA")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type must be LORA, not {quoted(kind)}")
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise CheckpointError(f"{path}: Missing required configuration fields: {missing}")
    _refuse(path, fields)
    patterns = {name: _pattern(path, fields, name) for name in ("rank_pattern", "alpha_pattern")}
    saved = _names(path, fields, "modules_to_save")
    if saved and _flag(path, fields, "ensure_weight_tying"):
        saved = (*saved, "lm_head")  # the same numbers as the embedding's
    return PeftConfig(
        path,
        rank=int(_number(path, "r", fields["r"], whole=True)),
        alpha=_number(path, "lora_alpha", fields["lora_alpha"], whole=False),
        is_rank_stabilised=_flag(path, fields, "use_rslora"),
        has_magnitudes=_flag(path, fields, "use_dora"),
        saved=saved,
        **patterns,
    )


def _refuse(path: Path, fields: Mapping[str, Any]) -> None:
    for name, feature in _REFUSED.items():
        if fields.get(name):
            raise CheckpointError(f"{path}: {name} must be empty: {feature} are not supported")
    bias = fields.get("bias") or "none"
    if bias != "none":
        raise CheckpointError(
            f'{path}: bias must be "none", not {quoted(bias)}: Adapter bias is not supported.'
        )
    how = fields.get("init_lora_weights")
    if isinstance(how, str) and how.lower() not in _KEPT_BASE:
        raise CheckpointError(
            f"{path}: init_lora_weights={quoted(how)} changes the weights of the base model; "
            "convert the adapter with PEFT's path_initial_model_for_weight_conversion"
        )


def checked_number(where: str, value: Any) -> float:
    """Return a number of an adapter's configuration. `where`: its name in errors. Raises
    CheckpointError if it is not a number, or a large one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _MAX_NUMBER:
        raise CheckpointError(
            f"{where} must be a number from -{_MAX_NUMBER:g} to {_MAX_NUMBER:g}, "
            f"got {quoted(value)}"
        )
    return float(value)


def _number(path: Path, name: str, value: Any, *, whole: bool) -> float:
    number = checked_number(f"{path}: {name}", value)
    if whole and number != int(number):
        raise CheckpointError(f"{path}: {name} must be a whole number, got {quoted(value)}")
    if whole and not 1 <= value <= MAX_RANK:
        raise CheckpointError(f"{path}: {name} must be from 1 to {MAX_RANK}, got {quoted(value)}")
    return number


def _flag(path: Path, fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name) or False
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} must be true or false, got {quoted(value)}")
    return value


def _names(path: Path, fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CheckpointError(f"{path}: {name} must be a list of names, got {quoted(value)}")
    return tuple(value)


def _pattern(path: Path, fields: Mapping[str, Any], name: str) -> PatternTable:
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {name} must be an object, got {quoted(value)}")
    whole = name == "rank_pattern"
    where = f"{path}: {name}"
    numbers = {
        key: _number(path, f"{name}[{quoted(key)}]", n, whole=whole) for key, n in value.items()
    }
    return PatternTable(numbers, where)
