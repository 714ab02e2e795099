"""`ChatPrompts`: renders conversations as prompts for `LLM`. Templates run in a child process.

`LLM` has one as `renderer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.frontend.arguments import located
from quire.frontend.inputs.prompt_parser import PromptParser
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.offline.llm_arguments import ChatOptions, as_conversations
from quire.inputs import TokensPrompt
from quire.system.deferred_signals import deliver_signals

if TYPE_CHECKING:
    from quire.frontend.hf.tokenizer import HFTokenizer
    from quire.frontend.offline.llm_engine import LLMEngine


class ChatPrompts:
    """Renders and encodes for the model of one engine. Thread-safe."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine

    @property
    def tokenizer(self) -> HFTokenizer:
        """Same as `get_tokenizer()`."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> HFTokenizer:
        """The model's tokenizer, with methods of `transformers` tokenizers."""
        return self._engine.get_tokenizer()

    def render_chat(self, messages: Sequence[Any], options: ChatOptions) -> list[str]:
        """The prompts of one conversation or several. Raises RequestError."""
        renderer = self.get_tokenizer().renderer()
        prompts, conversations = [], as_conversations(messages)
        for index, one in enumerate(conversations):
            with located("messages", index, len(conversations)):
                prompts.append(renderer.render(options.job(one)))
            deliver_signals()
        return prompts

    def encode(
        self, prompts: Sequence[str], tokenization_kwargs: Mapping[str, Any]
    ) -> list[TokensPrompt]:
        """Add token ids to prompts. Raises RequestError."""
        model = self._engine.model_config
        parser = PromptParser(model, self._engine.tokenizer, self._engine.config.cache.block_size)
        tokenization = Tokenization.of(tokenization_kwargs, model.max_model_len)
        encoded = []
        for index, text in enumerate(prompts):
            with located("messages", index, len(prompts)):
                ids = parser.parse(text, tokenization).token_ids
            encoded.append(TokensPrompt(prompt=text, prompt_token_ids=ids))
        return encoded
