"""Validates and normalises the arguments of `LLM`'s methods; errors name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.chat.job import ChatInput, ContentFormat
from quire.errors import PromptError, RequestError, quoted
from quire.inputs import PromptType

Loras = LoRARequest | Sequence[LoRARequest | None] | None
PromptAdapters = PromptAdapterRequest | Sequence[PromptAdapterRequest | None] | None
"""One for all prompts, or one for each; None: none."""
_FORMATS = ("auto", "string", "openai")


def from_column(name: str, value: Any) -> Any:
    """A column of pandas, polars or Arrow, or an array of NumPy, as a list; others unchanged.
    Raises RequestError for a whole table, which would be a list of its columns."""
    if hasattr(value, "columns"):
        raise _error(name, type(value).__name__, "a column of the table, such as table['text']")
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow, polars and pandas, NumPy
        if not isinstance(value, type) and callable(getattr(value, method, None)):
            return getattr(value, method)()
    return value


def as_prompts(prompts: Any) -> list[PromptType]:
    """Return one prompt or several as a list: a text, a dict or a list of token ids is one prompt;
    a column of a table has several. Raises RequestError."""
    if isinstance(prompts, (str, dict)):
        return [cast(PromptType, prompts)]
    prompts = from_column("prompts", prompts)
    if isinstance(prompts, (bytes, bytearray, memoryview)) or not isinstance(prompts, Iterable):
        raise PromptError(
            "prompts must be a text, a list of token ids, a dict with prompt or "
            f"prompt_token_ids, or a list of these, got {quoted(prompts)}",
            parameter="prompts",
            value=prompts,
        )
    found = list(prompts)
    if set(map(type, found)) == {int}:
        return [found]
    return found


def one_each(name: str, value: Any, kind: type | tuple[type, ...], count: int) -> list[Any]:
    """Return one value per prompt, from a single value or a list. Raises TypeError or
    RequestError."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or not all(isinstance(each, kind) for each in value):
        shown = kind[0] if isinstance(kind, tuple) else kind
        raise TypeError(
            f"{name} must be of type {shown.__name__}, or a list of these, got {quoted(value)}"
        )
    if len(value) != count:
        raise RequestError(
            f"The lengths of prompts ({count}) and {name} ({len(value)}) must be the same.",
            parameter=name,
        )
    return list(value)


@dataclass(frozen=True, slots=True)
class GivenAdapters:
    """`lora_request` and `prompt_adapter_request` of a call: each one for all prompts, or one for
    each; None: none."""

    lora: Loras = None
    prompt: PromptAdapters = None

    def each(self, count: int) -> list[dict[str, Any]]:
        """The arguments of each prompt. Raises TypeError or RequestError."""
        loras = _one_each("lora_request", self.lora, LoRARequest, count)
        prompts = _one_each("prompt_adapter_request", self.prompt, PromptAdapterRequest, count)
        return [
            {"lora_request": lora, "prompt_adapter_request": prompt}
            for lora, prompt in zip(loras, prompts, strict=True)
        ]


def _one_each(name: str, value: Any, kind: type, count: int) -> list[Any]:
    if value is None or isinstance(value, kind):
        return [value] * count
    return one_each(name, value, (kind, type(None)), count)


def as_conversations(messages: Any) -> list[Any]:
    """Return one conversation (a list of messages) or several as a list. Raises RequestError."""
    messages = from_column("messages", messages)
    if isinstance(messages, list):  # a cell of a column of pandas may be an array
        messages = [from_column("messages", one) for one in messages]
    if not isinstance(messages, (list, tuple)):
        raise _error("messages", messages, "a list of messages, or a list of such lists")
    if not messages:
        raise RequestError("messages cannot be empty", parameter="messages")
    if not isinstance(messages[0], (list, tuple)):
        return [messages]
    for index, conversation in enumerate(messages):
        if not isinstance(conversation, (list, tuple)):
            raise _error(f"messages[{index}]", conversation, "a list of messages, like messages[0]")
    return list(messages)


def with_image_settings(
    prompts: Sequence[PromptType], kwargs: dict[str, Any] | None
) -> Sequence[PromptType]:
    """The prompts, of which those with images get `mm_processor_kwargs`, if they have none."""
    if kwargs is None:
        return prompts
    return [
        cast(PromptType, {"mm_processor_kwargs": kwargs, **one})
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
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises RequestError for the first argument of a wrong type."""
        template, tools, values = self.chat_template, self.tools, self.chat_template_kwargs
        if template is not None and not isinstance(template, str):
            raise _error("chat_template", template, "a string: a template or its name")
        form = self.chat_template_content_format
        if not isinstance(form, str) or form not in _FORMATS:
            raise _error("chat_template_content_format", form, "auto, string or openai")
        for name in ("add_generation_prompt", "continue_final_message"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value in (0, 1)):
                raise _error(name, value, "True or False")
        if tools is not None and not (
            isinstance(tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in tools)
        ):
            raise _error("tools", tools, "a list of dicts")
        if values is not None and not (
            isinstance(values, Mapping) and all(isinstance(name, str) for name in values)
        ):
            raise _error("chat_template_kwargs", values, "a dict with strings as keys")

    def job(self, conversation: Any) -> ChatInput:
        """The rendering job of a conversation."""
        form = self.chat_template_content_format
        return ChatInput(
            conversation,
            tools=self.tools,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            content_format=None if form == "auto" else cast(ContentFormat, form),
        )


def chat_tokenization(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tokenization of a rendered conversation, whose template already wrote the special tokens."""
    return {"add_special_tokens": False, **(given or {})}


def _error(name: str, value: object, what: str) -> RequestError:
    return RequestError(f"{name} must be {what}, got {quoted(value)}", parameter=name, value=value)
