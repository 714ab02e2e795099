"""Values of sampling settings that the user has not set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NEUTRAL = {
    "temperature": "1.0", "top_p": "1.0, all tokens", "top_k": "0, all tokens",
    "min_p": "0.0, all tokens", "max_tokens": "as the context has room for", "seed": "random",
    "stop": "none",
}  # fmt: skip
"""Values of settings without any default."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Origins of a setting's value if the user has not set it."""

    model: Mapping[str, Any]
    """Defaults recommended by the checkpoint; the engine applies them itself."""
    chat: Mapping[str, Any]
    """Additional defaults for chats with people (`chat_sampling_params`)."""

    def shown(self, name: str) -> str:
        """The value of a setting and its origin, as text."""
        if name in self.chat:
            return f"{self.chat[name]} (default)"
        if name in self.model:
            return f"{self.model[name]} (the model's default)"
        return f"{_NEUTRAL[name]} (default)"
