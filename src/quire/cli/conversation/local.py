"""A conversation with an engine in this process, for `quire run`.

Drives `LLMEngine` step by step, so that text is shown after each step and Ctrl+C takes effect
between two steps. Owned by the main thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from quire.chat.job import ChatInput
from quire.chat.renderer import ChatRenderer
from quire.chat.templates import ChatTemplates
from quire.cli.conversation.repl import Conversation, TokenCounts
from quire.config.engine_args import EngineArgs
from quire.frontend.offline.llm_engine import LLMEngine
from quire.params import RequestOutputKind, SamplingParams


class LocalConversation(Conversation):
    """A conversation with a model in this process.

    A model without a chat template continues the last message as plain text, without the history.
    """

    def __init__(self, args: EngineArgs, system_prompt: str | None = None) -> None:
        super().__init__(system_prompt)
        self.engine = LLMEngine.from_engine_args(args)
        special_tokens = self.engine.get_tokenizer().inner.roles
        templates = ChatTemplates.of_model(self.engine.model_config, special_tokens)
        self._renderer = ChatRenderer(templates)
        if templates:
            self._renderer.start()
        self._numbers = itertools.count()

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._renderer.templates)

    def stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """The answer, piece by piece; closing the generator aborts the request."""
        if self.is_chat:
            tokenizer = self.engine.get_tokenizer().inner
            text = self._renderer.render(ChatInput(messages))
            ids = tokenizer.encode(text, add_special_tokens=False)
            yield from self._generate({"prompt_token_ids": ids})
        else:
            yield from self._generate({"prompt": messages[-1]["content"]})

    def _generate(self, prompt: Any) -> Iterator[str]:
        request_id = f"run-{next(self._numbers)}"
        self.engine.add_request(request_id, prompt, self._params())
        self.counts = TokenCounts()
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    self.counts.prompt = len(output.prompt_token_ids or ())
                    self.counts.cached = output.num_cached_tokens or 0
                    for completion in output.outputs:
                        self.counts.completion += len(completion.token_ids)
                        yield completion.text
        finally:
            self.engine.abort_request(request_id)

    def _params(self) -> SamplingParams:
        """The user's settings over the model's defaults; `max_tokens` is unlimited by default."""
        defaults = self.engine.model_config.default_sampling_params
        wanted = {"max_tokens": None, **defaults, **self.settings}
        return SamplingParams.from_optional(output_kind=RequestOutputKind.DELTA, **wanted)

    def close(self) -> None:
        """Frees the model."""
        self._renderer.close()
        self.engine.shutdown()
