"""The conversations of `LLM`: `ChatPrompts` renders them in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from quire.chat.job import VARIABLES, ChatInput, ContentFormat, has_images
from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.images.prompts import ImagePrompts, rendered_with_images
from quire.frontend.inputs.refusals import only_hears
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.offline.calls import from_column, wrong
from quire.images.config import PROCESSOR_KWARGS
from quire.inputs import PromptType, TokensPrompt
from quire.system.deferred_signals import deliver_signals

if TYPE_CHECKING:
    from quire.frontend.hf_tokenizer import HFTokenizer
    from quire.frontend.offline.llm_engine import LLMEngine

_FORMATS = ("auto", "string", "openai")


def as_conversations(messages: Any) -> list[Any]:
    """Return one conversation (a list of messages) or several as a list. Raises RequestError."""
    messages = from_column("messages", messages)
    if isinstance(messages, list):  # a cell of a column of pandas may be an array
        messages = [from_column("messages", one) for one in messages]
    if not isinstance(messages, (list, tuple)):
        raise wrong("messages", messages, "a list of messages, or a list of such lists")
    if not messages:
        raise RequestError("messages cannot be empty", parameter="messages")
    if not isinstance(messages[0], (list, tuple)):
        return [messages]
    for index, conversation in enumerate(messages):
        if not isinstance(conversation, (list, tuple)):
            raise wrong(f"messages[{index}]", conversation, "a list of messages, like messages[0]")
    return list(messages)


def with_image_settings(
    prompts: Sequence[PromptType], kwargs: dict[str, Any] | None
) -> Sequence[PromptType]:
    """The prompts, of which those with images get these settings of the image processor, if they
    have none."""
    if kwargs is None:
        return prompts
    return [
        cast(PromptType, {PROCESSOR_KWARGS: kwargs, **one})
        if isinstance(one, dict) and one.get("multi_modal_data")
        else one
        for one in prompts
    ]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options for rendering conversations: the validated arguments of `LLM.chat`."""

    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] | None = None
    """Further variables of the template."""
    image_settings: dict[str, Any] | None = None
    """Settings of the image processor."""

    def __post_init__(self) -> None:
        """Raises RequestError for the first argument of a wrong type."""
        template, tools, values = self.chat_template, self.tools, self.variables
        if template is not None and not isinstance(template, str):
            raise wrong("chat_template", template, "a string: a template or its name")
        form = self.chat_template_content_format
        if not isinstance(form, str) or form not in _FORMATS:
            raise wrong("chat_template_content_format", form, "auto, string or openai")
        for name in ("add_generation_prompt", "continue_final_message"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value in (0, 1)):
                raise wrong(name, value, "True or False")
        if tools is not None and not (
            isinstance(tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in tools)
        ):
            raise wrong("tools", tools, "a list of dicts")
        if values is not None and not (
            isinstance(values, Mapping) and all(isinstance(name, str) for name in values)
        ):
            raise wrong(VARIABLES, values, "a dict with strings as keys")

    def job(self, conversation: Any) -> ChatInput:
        """The rendering job of a conversation."""
        form = self.chat_template_content_format
        return ChatInput(
            conversation,
            tools=self.tools,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template=self.chat_template,
            variables=self.variables,
            content_format=None if form == "auto" else cast(ContentFormat, form),
        )


def chat_tokenization(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tokenization of a rendered conversation, whose template already wrote the special tokens."""
    return {"add_special_tokens": False, **(given or {})}


class ChatPrompts:
    """Renders and encodes for the model of one engine. Thread-safe."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._images = ImagePrompts(engine.model_config)

    @property
    def tokenizer(self) -> HFTokenizer:
        """Same as `get_tokenizer()`."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> HFTokenizer:
        """The model's tokenizer, with methods of `transformers` tokenizers."""
        return self._engine.get_tokenizer()

    def render_chat(self, messages: Sequence[Any], options: ChatOptions) -> list[PromptType]:
        """The prompts of one conversation or several. Raises RequestError."""
        prompts, conversations = list[PromptType](), as_conversations(messages)
        for index, one in enumerate(conversations):
            with located("messages", index, len(conversations)):
                prompts.append(self._render(options.job(one), options.image_settings))
            deliver_signals()
        return prompts

    def _render(self, chat: ChatInput, image_settings: Mapping[str, Any] | None) -> PromptType:
        renderer, model = self.get_tokenizer().renderer(), self._engine.model_config
        if model.num_sources:
            raise RequestError(only_hears(model))
        if not has_images(chat.messages):
            return renderer.render(replace(chat, no_images=model.no_images))
        text, placed = rendered_with_images(
            renderer.render, chat, self._images.changed(image_settings), self._ids
        )
        return {
            "prompt": text,
            "prompt_token_ids": placed.token_ids,
            "multi_modal_data": {"image": placed},
        }

    def _ids(self, text: str) -> list[int]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("chats need a tokenizer")
        return tokenizer.encode(text, add_special_tokens=False)

    def encode(
        self, prompts: Sequence[PromptType], tokenization_kwargs: Mapping[str, Any]
    ) -> list[TokensPrompt]:
        """Add token ids to prompts. Raises RequestError."""
        parse = self._engine.input_processor.parse
        most = self._engine.model_config.max_model_len
        tokenization = Tokenization.of(tokenization_kwargs, most)
        encoded = []
        for index, text in enumerate(prompts):
            with located("messages", index, len(prompts)):
                ids = parse(text, tokenization).token_ids
            if isinstance(text, dict):  # with images, which are placed
                encoded.append(cast(TokensPrompt, text))
            else:
                encoded.append(TokensPrompt(prompt=cast(str, text), prompt_token_ids=ids))
        return encoded
