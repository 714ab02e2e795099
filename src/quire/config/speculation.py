"""`SpeculationConfig`: how draft tokens are proposed, from vLLM's `speculative_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import ConfigError, quoted

Method = Literal["ngram"]

_METHODS = ("ngram",)
_LATER = frozenset({
    "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "deepseek_mtp",
    "dflash", "dspark", "suffix",
})  # fmt: skip
_SPELLINGS = {"ngram_gpu": "ngram", "[ngram]": "ngram"}
_MAX_DRAFT = 128
"""vLLM's MAX_SPEC_LEN."""
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "disable_padded_drafter_batch": (False, True),
    "rejection_sample_method": ("standard",),
    "enforce_eager": (None, False, True),
    "max_model_len": (None,),
    "parallel_drafting": (False,),
    "tensor_parallel_size": (None, 1),
    "draft_tensor_parallel_size": (None, 1),
}
"""Keys of vLLM with the values that have no effect."""
_LENGTHS = {
    "num_speculative_tokens": (1, _MAX_DRAFT),
    "prompt_lookup_min": (1, 32),
    "prompt_lookup_max": (1, 32),
}
"""Keys of whole numbers, with the smallest and the largest value."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """What proposes draft tokens, and at most how many."""

    method: Method = "ngram"
    num_speculative_tokens: int = 32
    """Maximum number of draft tokens of one request in one step."""
    prompt_lookup_min: int = 3
    """Tokens that must agree with an earlier place of the text before its continuation is used."""


def speculation_config(
    given: Mapping[str, Any] | None, *, is_enabled: bool = True
) -> SpeculationConfig | None:
    """The configuration of `speculative_config`; without one, the adaptive default. None: no
    speculation. Raises ConfigError for keys and values that are not supported."""
    if given and not is_enabled:
        raise ConfigError("speculative_config must be left out when speculation is off")
    if not is_enabled:
        return None
    found = {key: value for key, value in (given or {}).items() if value is not None}
    method = _method(found)
    lengths = {name: _length(name, found.pop(name)) for name in _LENGTHS if name in found}
    for name, value in found.items():
        allowed = _NO_EFFECT.get(name)
        if allowed is None:
            names = ", ".join(("method", *_LENGTHS))
            raise ConfigError(f"speculative_config has no key {quoted(name)}; use {names}")
        if value not in allowed:
            raise ConfigError(
                f"speculative_config.{name}={value!r} is not supported; leave {name} out"
            )
    least = lengths.get("prompt_lookup_min", lengths.get("prompt_lookup_max"))
    most = lengths.get("prompt_lookup_max", least)
    default = SpeculationConfig()
    least = default.prompt_lookup_min if least is None else least
    if most is not None and most < least:
        raise ConfigError(
            f"speculative_config.prompt_lookup_min ({least}) must be at most prompt_lookup_max "
            f"({most})"
        )
    return SpeculationConfig(
        method, lengths.get("num_speculative_tokens", default.num_speculative_tokens), least
    )


def _method(found: dict[str, Any]) -> Method:
    """Takes the method out of the keys."""
    model = found.pop("model", None)
    method = found.pop("method", None)
    method = _SPELLINGS.get(str(method), method)
    if method is None and model is not None:
        method = _SPELLINGS.get(str(model), "draft_model")
    if method is None:
        method = "ngram"
    if method in _LATER:
        raise ConfigError(
            f"speculative_config.method={method!r} is not supported yet; use one of "
            f"{', '.join(_METHODS)}"
        )
    if method not in _METHODS:
        raise ConfigError(
            f"speculative_config.method must be one of {', '.join(_METHODS)}, not {quoted(method)}"
        )
    found.pop("quantization", None)
    return "ngram"


def _length(name: str, value: Any) -> int:
    low, high = _LENGTHS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(
            f"speculative_config.{name} must be a whole number from {low} to {high}, not {value!r}"
        )
    return value
