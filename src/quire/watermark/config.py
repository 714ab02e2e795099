"""`WatermarkConfig`: how an engine watermarks what it generates. Names and limits are vLLM's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from quire.errors import ConfigError, quoted
from quire.suggest import did_you_mean

ALGORITHMS = ("gumbel", "dual_key_gumbel")
SCOPES = ("none", "single_turn", "all")
_PRFS = ("philox",)
_KEY_BITS = 64
_LONG_CONTEXT = 16
"""Contexts longer than this are told: each changed token spoils as many decisions."""
_SHORT_HISTORY = 1024


@dataclass(frozen=True)
class WatermarkConfig:
    """Raises ConfigError for what there is not."""

    key: int = field(repr=False)
    """The secret that generation and detection share; from 0 to 2**64 - 1. Never shown."""
    algorithm: str = "gumbel"
    """`gumbel`: noise from the key, the context and the token decides. `dual_key_gumbel`: the noise
    of one of two keys, by chance."""
    alpha: float = 0.1
    """How often `dual_key_gumbel` takes its second key."""
    context_width: int = 4
    """How many generated tokens before one its noise depends on."""
    deduplicate_contexts: str = "single_turn"
    """Where a context is looked for that was there before, whose token gets no watermark: `none`,
    `single_turn` (the output) or `all` (the prompt too)."""
    deduplicate_contexts_max_history: int | None = 8192
    """How many of the last positions are looked at; None: all."""
    prf: str = "philox"
    """Where pseudorandom numbers come from."""
    allow_target_only_watermarking: bool = False
    """Of speculative decoding: without effect here."""

    def __post_init__(self) -> None:
        _check_int("key", self.key, 0, 2**_KEY_BITS - 1)
        _check_int("context_width", self.context_width, 1, None)
        if self.deduplicate_contexts_max_history is not None:
            name = "deduplicate_contexts_max_history"
            _check_int(name, self.deduplicate_contexts_max_history, 1, None)
        _check_name("algorithm", self.algorithm, ALGORITHMS)
        _check_name("deduplicate_contexts", self.deduplicate_contexts, SCOPES)
        _check_name("prf", self.prf, _PRFS)
        is_number = isinstance(self.alpha, (int, float)) and not isinstance(self.alpha, bool)
        if not is_number or not 0 <= self.alpha <= 1:
            raise _refusal("alpha", self.alpha, "a number from 0 to 1")
        if not isinstance(self.allow_target_only_watermarking, bool):
            value = self.allow_target_only_watermarking
            raise _refusal("allow_target_only_watermarking", value, "True or False")

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> WatermarkConfig | None:
        """From what a user gave; nothing: no watermarks. Raises ConfigError."""
        if not given:
            return None
        names = [one.name for one in fields(cls)]
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"watermark_config has no field {quoted(name)}{did_you_mean(name, names)}"
                )
        if "key" not in given:
            raise ConfigError('watermark_config needs a key, as {"algorithm": "gumbel", "key": 42}')
        return cls(**given)  # type: ignore[arg-type]

    @property
    def supports_speculative_decoding(self) -> bool:
        """vLLM's name for whether there are two keys."""
        return self.algorithm == "dual_key_gumbel"

    def doubts(self) -> list[str]:
        """What a user should know of this choice, for the log."""
        found = []
        most = self.deduplicate_contexts_max_history
        if self.deduplicate_contexts == "none" or (most is not None and most < _SHORT_HISTORY):
            found.append(
                f"a watermark that looks for repeated contexts in fewer than {_SHORT_HISTORY} "
                "positions makes loops more likely: leave deduplicate_contexts at single_turn and "
                "deduplicate_contexts_max_history at 8192"
            )
        if self.context_width > _LONG_CONTEXT:
            found.append(
                f"with a context_width of {self.context_width} each changed token hides the "
                f"watermark of as many others; {_LONG_CONTEXT} or less is usual"
            )
        return found


def derive_watermark_key(key: int, domain: bytes) -> int:
    """A key of its own for each purpose: the first 64 bits of SHA-256 of the purpose and the
    key."""
    digest = hashlib.sha256(domain + key.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big")


def both_keys(key: int) -> tuple[int, int]:
    """The two keys of `dual_key_gumbel`."""
    return derive_watermark_key(key, b"key_a"), derive_watermark_key(key, b"key_b")


def _check_int(name: str, value: object, least: int, most: int | None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < least or (most is not None and value > most):  # type: ignore[operator]
        bound = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise _refusal(name, "a hidden value" if name == "key" else value, f"an integer {bound}")


def _check_name(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise _refusal(name, value, f"one of {', '.join(known)}", hint)


def _refusal(name: str, value: object, wanted: str, hint: str = "") -> ConfigError:
    return ConfigError(f"watermark_config.{name} must be {wanted}, got {quoted(value)}{hint}")
