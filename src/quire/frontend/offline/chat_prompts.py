"""`ChatPrompts`: conversations to prompts, for `LLM`. Its template runs in a child process.

`LLM` has one as `renderer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from quire.chat.job import ChatInput, ContentFormat
from quire.frontend.offline.llm_arguments import as_conversations, check_chat_options
from quire.frontend.prompt_parser import PromptParser
from quire.frontend.tokenization import Tokenization
from quire.inputs import TokensPrompt

if TYPE_CHECKING:
    from quire.frontend.hf.tokenizer import HFTokenizer
    from quire.frontend.offline.llm_engine import LLMEngine


class ChatPrompts:
    """Renders and encodes for one engine's model. Any thread may call."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine

    @property
    def tokenizer(self) -> HFTokenizer:
        """The same as `get_tokenizer`."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> HFTokenizer:
        """The model's tokenizer, with the methods of one of `transformers`."""
        return self._engine.get_tokenizer()

    def render_chat(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """The prompts of one conversation or several. Raises RequestError."""
        check_chat_options(
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        forced = None if chat_template_content_format == "auto" else chat_template_content_format
        renderer = self.get_tokenizer().renderer()
        return [
            renderer.render(
                ChatInput(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template=chat_template,
                    chat_template_kwargs=chat_template_kwargs,
                    content_format=cast(ContentFormat | None, forced),
                )
            )
            for conversation in as_conversations(messages)
        ]

    def encode(
        self, prompts: Sequence[str], tokenization_kwargs: Mapping[str, Any]
    ) -> list[TokensPrompt]:
        """Prompts with their token ids. Raises RequestError."""
        model = self._engine.model_config
        parser = PromptParser(model, self._engine.tokenizer)
        tokenization = Tokenization.of(tokenization_kwargs, model.max_model_len)
        return [
            TokensPrompt(prompt=text, prompt_token_ids=parser.parse(text, tokenization).token_ids)
            for text in prompts
        ]
