"""`UserTokenizer`: the `HFTokenizer` of an engine, created on first use.

Used by both engines: its dependencies take time to import, and few programs need it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quire.config.records import ModelConfig
from quire.errors import ConfigError
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.frontend.hf.tokenizer import HFTokenizer


class UserTokenizer:
    """Creates the tokenizer on first use. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer | None, model: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._made: HFTokenizer | None = None
        self._lock = threading.Lock()

    def get(self) -> HFTokenizer:
        """The tokenizer, always the same object. Raises ConfigError if the engine has none."""
        if self._tokenizer is None:
            raise ConfigError("get_tokenizer needs a tokenizer: start without skip_tokenizer_init")
        with self._lock:
            if self._made is None:
                from quire.chat.templates import ChatTemplates
                from quire.frontend.hf.tokenizer import HFTokenizer

                model, roles = self._model, self._tokenizer.roles
                self._made = HFTokenizer(
                    self._tokenizer, model.model, lambda: ChatTemplates.of_model(model, roles)
                )
            return self._made

    def close(self) -> None:
        """Close the tokenizer, if it was created. Idempotent."""
        if self._made is not None:
            self._made.close()
