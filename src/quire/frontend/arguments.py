"""Arguments that the methods of every engine share. Called by `LLM`, `LLMEngine` and `AsyncLLM`."""

from __future__ import annotations

from typing import Any

from quire.errors import ConfigError


def refuse_arguments(**given: object) -> None:
    """Arguments of vLLM's methods that do nothing yet: anything but None is refused."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is not supported yet; leave it out")


def wants_special_tokens(tokenization_kwargs: dict[str, Any] | None) -> bool:
    """`add_special_tokens` of the arguments; any other is refused."""
    unknown = sorted(set(tokenization_kwargs or {}) - {"add_special_tokens"})
    if unknown:
        raise ConfigError(
            f"tokenization_kwargs: {', '.join(unknown)} is not supported; add_special_tokens is"
        )
    value = (tokenization_kwargs or {}).get("add_special_tokens", True)
    if not isinstance(value, bool):
        raise ConfigError(f"add_special_tokens must be True or False, got {value!r}")
    return value
