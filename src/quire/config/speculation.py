"""`SpeculationConfig`: how draft tokens are proposed, from vLLM's `speculative_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import ConfigError, quoted

Detail = Literal["none", "summary", "detailed"]

PROPOSERS = "quire.proposers"
"""Entry points of this group add methods."""
_METHODS = ("ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3", "medusa")
_WITH_MODEL = {
    "draft_model": "the draft model", "eagle": "the EAGLE head", "eagle3": "the EAGLE-3 head",
    "medusa": "the Medusa heads",
}  # fmt: skip
"""Methods with a model of its own, and what that is."""
_COMPUTED = ("mtp", *_WITH_MODEL)
"""Methods whose draft tokens the worker computes."""
_LATER = frozenset({"mlp_speculator", "dflash", "dspark"})
_SPELLINGS = {
    "ngram_gpu": "ngram", "[ngram]": "ngram", "ngram-simple": "ngram", "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram", "ngram-mod": "suffix", "ngram-cache": "suffix",
    "draft-simple": "draft_model", "draft-eagle3": "eagle3", "draft-mtp": "mtp",
    **dict.fromkeys(("deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp"), "mtp"),
}  # fmt: skip
"""Names of vLLM and llama.cpp that mean one of the methods."""
_MAX_DRAFT = 128
"""vLLM's MAX_SPEC_LEN."""
_MODEL_DRAFT = 8
"""Default of `num_speculative_tokens` for a model or a head, each of whose tokens takes a step."""
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
    "suffix_decoding_max_tree_depth": (1, _MAX_DRAFT),
    "suffix_decoding_max_cached_requests": (0, 1_000_000),
}
"""Keys of whole numbers, with the smallest and the largest value."""
_ALIASES = {
    "method": "spec_method", "model": "spec_model", "num_speculative_tokens": "spec_tokens",
}  # fmt: skip
"""Keys that have an option of their own."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """The proposer of draft tokens, and its limits."""

    method: str = "ngram"
    """`ngram`, `suffix`, `draft_model`, `mtp`, `eagle`, `eagle3`, `medusa`, or a method that an
    installed package adds."""
    num_speculative_tokens: int = 32
    """Maximum number of draft tokens of one request in one step."""
    prompt_lookup_min: int = 2
    """Tokens that must agree with an earlier place of the text before its continuation is used."""
    suffix_max_replies: int = 10_000
    """Maximum number of earlier replies of a tenant that `suffix` searches."""
    suffix_spec_factor: float = 1.0
    """Longest draft of `suffix` for each token that agrees with an earlier reply."""
    per_request_metrics: Detail = "none"
    """Detail of the statistics about draft tokens in each output."""
    model: str | None = None
    """The draft model or the head: a folder or a hub id."""
    revision: str | None = None
    quantization: str | None = None
    """`revision` and `quantization` are those of the draft model, as of the engine's arguments."""

    @property
    def has_model(self) -> bool:
        """Whether the worker computes the draft tokens, with a model or with a head."""
        return self.method in _COMPUTED

    @property
    def has_head(self) -> bool:
        """Whether they come from a head, which reads hidden states of the model."""
        return self.has_model and self.method != "draft_model"


def speculation_config(
    given: Mapping[str, Any] | None,
    *,
    is_enabled: bool = True,
    aliases: Mapping[str, Any] | None = None,
    per_request_metrics: Detail = "none",
) -> SpeculationConfig | None:
    """The configuration of `speculative_config`; without one, the adaptive default. None: no
    speculation. `aliases`: values of keys that options of their own name (None: not given).

    Raises ConfigError for keys and values that are not supported.
    """
    found = {key: value for key, value in (given or {}).items() if value is not None}
    shown: dict[str, str] = {}
    for key, value in (aliases or {}).items():
        if value is None:
            continue
        if key in found and found[key] != value:
            raise ConfigError(
                f"{_ALIASES[key]} is {value!r} and speculative_config.{key} is {found[key]!r}; "
                "give one of them"
            )
        if key not in found:
            found[key], shown[key] = value, _ALIASES[key]
    if not is_enabled:
        for name, value in (
            ("speculative_config", bool(found)),
            ("per_request_spec_decode_metrics", per_request_metrics != "none"),
        ):
            if value:
                raise ConfigError(f"{name} must be left out when speculation is off")
        return None
    if per_request_metrics not in ("none", "summary", "detailed"):
        raise ConfigError(
            "per_request_spec_decode_metrics must be none, summary or detailed, not "
            f"{quoted(per_request_metrics)}"
        )
    method, model = _method(found, shown)
    revision, quantization = _text(found, "revision"), _text(found, "quantization")
    lengths = {name: _length(name, found.pop(name), shown) for name in _LENGTHS if name in found}
    factor = _number(found, "suffix_decoding_max_spec_factor", 0, _MAX_DRAFT)
    _number(found, "suffix_decoding_min_token_prob", 0, 1)
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
    depth = lengths.get("suffix_decoding_max_tree_depth", default.num_speculative_tokens)
    if method in _COMPUTED:
        depth = _MODEL_DRAFT
    return SpeculationConfig(
        method,
        lengths.get("num_speculative_tokens", depth),
        least,
        lengths.get("suffix_decoding_max_cached_requests", default.suffix_max_replies),
        default.suffix_spec_factor if factor is None else factor,
        per_request_metrics,
        model,
        None if model is None else revision,
        quantization if method in _COMPUTED else None,
    )


def _method(found: dict[str, Any], shown: Mapping[str, str]) -> tuple[str, str | None]:
    """Takes the method out of the keys, and the draft model if the method needs one. `shown`: keys
    that were given by options of their own."""
    model = found.pop("model", None)
    method = found.pop("method", None)
    key, given = ("model", model) if method is None else ("method", method)
    method = _SPELLINGS.get(str(method), method)
    if method is None and model is not None:
        method = _SPELLINGS.get(str(model), "draft_model")
    if method is None:
        method = "ngram"
    if not isinstance(method, str):
        raise ConfigError(f"{_name(key, shown)} must be a text, not {quoted(given)}")
    if method in _LATER:
        raise ConfigError(
            f"{_name(key, shown)}={quoted(given)} is not supported yet; method must be one of "
            f"{', '.join(_METHODS)}"
        )
    if method not in _METHODS and method not in (added := _added_methods()):
        raise ConfigError(
            f"{_name(key, shown)} must be one of {', '.join((*_METHODS, *added))}, not "
            f"{quoted(given)}"
        )
    if (what := _WITH_MODEL.get(method)) is None:
        return method, None
    if not isinstance(model, str) or not model:
        raise ConfigError(
            f"{_name('model', shown)} must name {what}, a folder or a hub id, not {quoted(model)}"
        )
    return method, model


def _added_methods() -> list[str]:
    """The methods of installed packages."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=PROPOSERS)})


def _name(key: str, shown: Mapping[str, str]) -> str:
    """The user's own spelling of a key."""
    return shown.get(key) or f"speculative_config.{key}"


def _text(found: dict[str, Any], name: str) -> str | None:
    """Takes a text out of the keys; None if it is not there."""
    value = found.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"speculative_config.{name} must be a text, not {quoted(value)}")
    return value


def _length(name: str, value: Any, shown: Mapping[str, str]) -> int:
    low, high = _LENGTHS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(
            f"{_name(name, shown)} must be a whole number from {low} to {high}, not {value!r}"
        )
    return value


def _number(found: dict[str, Any], name: str, low: float, high: float) -> float | None:
    """Takes a number out of the keys; None if it is not there."""
    value = found.pop(name, None)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise ConfigError(
            f"speculative_config.{name} must be a number from {low} to {high}, not {value!r}"
        )
    return float(value)
