"""`ChatPrompts`: renders conversations as prompts for `LLM`. Templates run in a child process.

`LLM` has one as `renderer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from quire.chat.images import has_images
from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.images.chats import rendered_with_images
from quire.frontend.inputs.images.prompts import ImagePrompts
from quire.frontend.inputs.prompt_parser import PromptParser
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.offline.llm_arguments import ChatOptions, as_conversations
from quire.inputs import PromptType, TokensPrompt
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

    def render_chat(
        self, messages: Sequence[Any], options: ChatOptions, *, adds_special_tokens: bool = False
    ) -> list[PromptType]:
        """The prompts of one conversation or several. Raises RequestError."""
        prompts, conversations = list[PromptType](), as_conversations(messages)
        for index, one in enumerate(conversations):
            with located("messages", index, len(conversations)):
                prompts.append(
                    self._render(options.job(one), options.mm_processor_kwargs, adds_special_tokens)
                )
            deliver_signals()
        return prompts

    def _render(
        self, chat: ChatInput, image_settings: Mapping[str, Any] | None, adds_special_tokens: bool
    ) -> PromptType:
        renderer, model = self.get_tokenizer().renderer(), self._engine.model_config
        if not has_images(chat.messages):
            return renderer.render(replace(chat, no_images=model.no_images))
        text, placed = rendered_with_images(
            renderer.render,
            chat,
            ImagePrompts(model).changed(image_settings),
            lambda given: self._ids(given, adds_special_tokens),
        )
        return {
            "prompt": text,
            "prompt_token_ids": placed.token_ids,
            "multi_modal_data": {"image": placed},
        }

    def _ids(self, text: str, adds_special_tokens: bool) -> list[int]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("chats need a tokenizer")
        return tokenizer.encode(text, add_special_tokens=adds_special_tokens)

    def encode(
        self, prompts: Sequence[PromptType], tokenization_kwargs: Mapping[str, Any]
    ) -> list[TokensPrompt]:
        """Add token ids to prompts. Raises RequestError."""
        model = self._engine.model_config
        parser = PromptParser(model, self._engine.tokenizer, self._engine.config.cache.block_size)
        tokenization = Tokenization.of(tokenization_kwargs, model.max_model_len)
        encoded = []
        for index, text in enumerate(prompts):
            with located("messages", index, len(prompts)):
                ids = parser.parse(text, tokenization).token_ids
            if isinstance(text, dict):  # with images, which are placed
                encoded.append(cast(TokensPrompt, text))
            else:
                encoded.append(TokensPrompt(prompt=cast(str, text), prompt_token_ids=ids))
        return encoded
