"""The sampling settings of a conversation that the user has not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NEUTRAL = {
    "temperature": "1.0", "top_p": "1.0, all tokens", "top_k": "0, all tokens",
    "min_p": "0.0, all tokens", "max_tokens": "as the context has room for", "seed": "random",
    "stop": "none",
}  # fmt: skip
"""What applies to a setting that nobody has chosen."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Where a setting's value comes from when the user has not chosen one."""

    model: Mapping[str, Any]
    """The defaults that the checkpoint recommends; the engine applies them itself."""
    chat: Mapping[str, Any]
    """What a front end for people adds to them (`chat_sampling_params`)."""

    def shown(self, name: str) -> str:
        """The value of a setting, and where it comes from."""
        if name in self.chat:
            return f"{self.chat[name]} (default)"
        if name in self.model:
            return f"{self.model[name]} (the model's default)"
        return f"{_NEUTRAL[name]} (default)"
