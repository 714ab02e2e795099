"""`UserTokenizer`: the `HFTokenizer` of an engine, made when it is first asked for.

Held by both engines: what it is made of takes time to import, and few programs ask for it.
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
    """Any thread may call."""

    def __init__(self, tokenizer: Tokenizer | None, model: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._made: HFTokenizer | None = None
        self._lock = threading.Lock()

    def get(self) -> HFTokenizer:
        """The same object each time. Raises ConfigError if the engine has no tokenizer."""
        if self._tokenizer is None:
            raise ConfigError("there is no tokenizer: the engine has skip_tokenizer_init=True")
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
        """Ends what it has started. Idempotent."""
        if self._made is not None:
            self._made.close()
