"""`EngineBase`: what `LLMEngine` and `AsyncLLM` share: configuration, tokenizer and tracer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.config.records import EngineConfig, ModelConfig
from quire.errors import ConfigError
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.observers.tracing import RequestTracer, make_tracer
from quire.tokenizer.for_model import load_tokenizer

if TYPE_CHECKING:
    from quire.frontend.hf_tokenizer import HFTokenizer


class EngineBase:
    """One model's configuration and tokenizer. Any thread may ask for them."""

    def __init__(self, config: EngineConfig, tracer: RequestTracer | None = None) -> None:
        """`tracer` replaces the one that `config` selects."""
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        self._tracer = tracer or make_tracer(config)
        self._hf_tokenizer: HFTokenizer | None = None
        self._hf_lock = threading.Lock()

    @property
    def log_stats(self) -> bool:
        """Whether statistics are collected: False with `disable_log_stats`."""
        return self.config.observability.log_stats

    @property
    def vllm_config(self) -> EngineConfig:
        """The whole configuration."""
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        """The configuration of the model."""
        return self.config.model

    def tokenization(self, kwargs: Mapping[str, Any] | None) -> Tokenization:
        """The value of `tokenization_kwargs`. Raises ConfigError and RequestError."""
        model = self.config.model
        return Tokenization.of(kwargs, model.max_model_len, pools=model.pooling is not None)

    def get_tokenizer(self) -> HFTokenizer:
        """The tokenizer, with methods of `transformers` tokenizers; always the same object. Raises
        ConfigError if the engine has none."""
        if self.tokenizer is None:
            raise ConfigError("get_tokenizer needs a tokenizer: start without skip_tokenizer_init")
        with self._hf_lock:
            if self._hf_tokenizer is None:
                # They take time to import, and few programs need them.
                from quire.chat.templates import ChatTemplates
                from quire.frontend.hf_tokenizer import HFTokenizer

                model, roles = self.config.model, self.tokenizer.roles
                self._hf_tokenizer = HFTokenizer(
                    self.tokenizer, model.model, lambda: ChatTemplates.of_model(model, roles)
                )
            return self._hf_tokenizer

    def _close_parts(self) -> None:
        """Closes tokenizer and tracer. Idempotent."""
        if self._hf_tokenizer is not None:
            self._hf_tokenizer.close()
        if self._tracer is not None:
            self._tracer.close()
