"""`StructuredOutputsConfig`: what holds for the structured output of all requests of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from quire.errors import ConfigError, QuireError, quoted
from quire.suggest import did_you_mean

OWN_BACKENDS = (None, "auto", "guidance")
"""There is one: llguidance, which vLLM calls `guidance`."""
_BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")
"""vLLM's. The choice has no effect: llguidance follows all that the others do."""


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """vLLM's fields. Raises ConfigError for what there is not."""

    backend: str = "auto"
    """A name of vLLM's, without effect: there is one, `guidance`."""
    disable_any_whitespace: bool = False
    """JSON without optional white space, for all requests."""
    disable_additional_properties: bool = True
    """Whether JSON objects have no properties but those that their schema names, where it names
    some and does not say otherwise. A request may say the opposite."""
    reasoning_parser: str = ""
    """Name of the format in which the model marks its reasoning; empty: it is found from the
    checkpoint."""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False
    """Whether grammars hold from the begin of a reply, for the reasoning too."""

    def __post_init__(self) -> None:
        check_backend("structured_outputs_config.backend", self.backend, ConfigError)
        for name in (
            "disable_any_whitespace",
            "disable_additional_properties",
            "enable_in_reasoning",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(
                    f"structured_outputs_config.{name} must be True or False, got {quoted(value)}"
                )
        if self.reasoning_parser_plugin not in ("", None):
            raise ConfigError(
                "structured_outputs_config.reasoning_parser_plugin="
                f"{quoted(self.reasoning_parser_plugin)} is not supported: formats are part of "
                "Quire; leave it out"
            )

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> StructuredOutputsConfig:
        """From what a user gave. Raises ConfigError for unknown names."""
        names = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in names:
                raise ConfigError(
                    f"structured_outputs_config has no field {quoted(name)}"
                    f"{did_you_mean(name, names)}"
                )
        kept = {name: value for name, value in (given or {}).items() if value is not None}
        return cls(**kept)  # type: ignore[arg-type]


def check_backend(name: str, value: object, error: Callable[[str], QuireError]) -> None:
    """Raises what `error` makes of a message, for a name that is not one of vLLM's backends. Its
    older versions have options after a colon, as in `xgrammar:no-fallback`."""
    known = value.partition(":")[0] in _BACKENDS if isinstance(value, str) else value is None
    if not known:
        hint = did_you_mean(value, _BACKENDS) if isinstance(value, str) else ""
        raise error(
            f"{name}={quoted(value)} is not known; use {', '.join(_BACKENDS[:-1])} or "
            f"{_BACKENDS[-1]}: structured outputs come from llguidance with any of them{hint}"
        )
