"""The bodies of Ollama's API for texts: requests, whole replies, and the lines of streams.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.errors import ConfigError
from quire.server.fleet.catalog import keep_alive_seconds
from quire.server.requests.fields import Count, Int64, PositionLogprobs, TokenId


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model calls."""

    name: str
    arguments: dict[str, Any]
    description: str | None = None
    index: Int64 | None = None


class CalledTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call of a tool."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_name: str | None = None
    """The tool whose result a message of the role `tool` is."""
    tool_call_id: str | None = None


def is_zero(keep_alive: str | int | float | None) -> bool:
    """Whether `keep_alive` lets a model be unloaded at once."""
    with suppress(ConfigError):
        return keep_alive is not None and keep_alive_seconds(keep_alive) == 0
    return False


class TextFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chats and plain prompts have in common."""

    model: str | None = None
    stream: bool | None = True
    format: Literal["json", ""] | dict[str, Any] | None = None
    """`json`, or the schema of the reply."""
    options: dict[str, Any] | None = None
    """Parameters of sampling and limits, such as `temperature` and `num_predict`."""
    think: bool | Literal["high", "medium", "low", "max"] | None = None
    """Whether the model reasons before it answers."""
    keep_alive: str | int | float | None = None
    """Time for which the model stays loaded after this request, in a server of several models."""
    logprobs: bool | None = None
    """Whether the reply has the log-probabilities of its tokens."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Number of the likeliest tokens at each place, besides."""
    truncate: bool | None = None
    shift: bool | None = None
    """Both are accepted: a prompt that is too long is refused."""

    @property
    def only_unloads(self) -> bool:
        """Whether the request has no prompt and lets its model be unloaded."""
        return is_zero(self.keep_alive) and not self._has_prompt()

    def _has_prompt(self) -> bool:
        return True


class OllamaChatRequest(TextFields, kw_only=True):
    """A conversation to be continued. Without messages, the model is loaded, or unloaded if
    `keep_alive` is 0."""

    messages: list[OllamaMessage] = []
    tools: list[dict[str, Any]] | None = None

    def _has_prompt(self) -> bool:
        return bool(self.messages)


class GenerateRequest(TextFields, kw_only=True):
    """A prompt to be answered. Without one, the model is loaded, or unloaded if `keep_alive` is
    0."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = False
    """Whether the prompt is used as it is, without the chat template."""
    suffix: str | None = None
    """Text after the gap that the reply fills."""
    template: str | None = None
    """Must be empty: no template from a request is run."""
    context: list[TokenId] | None = None
    """Tokens before the prompt: those of an earlier reply."""
    images: list[str] | None = None

    def _has_prompt(self) -> bool:
        return bool(self.prompt or self.system or self.suffix)


class ReplyFields(msgspec.Struct, kw_only=True):
    """Fields of every line. The counts and durations (in nanoseconds) are in the last one."""

    model: str
    created_at: str
    done: bool = False
    done_reason: Literal["stop", "length", "load", "unload"] | msgspec.UnsetType = msgspec.UNSET
    total_duration: Count | msgspec.UnsetType = msgspec.UNSET
    load_duration: Count | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_count: Count | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_duration: Count | msgspec.UnsetType = msgspec.UNSET
    eval_count: Count | msgspec.UnsetType = msgspec.UNSET
    eval_duration: Count | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[PositionLogprobs] | msgspec.UnsetType = msgspec.UNSET


class ReplyFunction(msgspec.Struct, kw_only=True):
    """A function that the model calls."""

    index: Count
    name: str
    arguments: dict[str, Any]


class ReplyCall(msgspec.Struct, kw_only=True):
    """A complete call."""

    id: str
    function: ReplyFunction


class ReplyMessage(msgspec.Struct, kw_only=True):
    """The model's message, or the next part of it."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ReplyCall] | msgspec.UnsetType = msgspec.UNSET


class OllamaChatReply(ReplyFields, kw_only=True):
    """A whole reply to a chat, or one line of a stream."""

    message: ReplyMessage


class GenerateReply(ReplyFields, kw_only=True):
    """A whole reply to a prompt, or one line of a stream."""

    response: str
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    context: list[TokenId] | msgspec.UnsetType = msgspec.UNSET
    """Tokens of the prompt and the reply, in the last line; none for a raw prompt."""


class ModelDetails(msgspec.Struct, kw_only=True):
    """Kind, format and size of a model."""

    parent_model: str = ""
    format: Literal["gguf", "safetensors"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(msgspec.Struct, kw_only=True):
    """A model that is served."""

    name: str
    model: str
    modified_at: str
    size: Count
    """Bytes of its weight files."""
    digest: str
    details: ModelDetails


class ModelTags(msgspec.Struct, kw_only=True):
    """All models."""

    models: list[ListedModel]


class LoadedModel(ListedModel, kw_only=True):
    """A model in memory."""

    expires_at: str
    size_vram: Literal[0] = 0
    context_length: Count


class LoadedModels(msgspec.Struct, kw_only=True):
    """The models in memory."""

    models: list[LoadedModel]


class ShowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Asks about one model."""

    model: str | None = None
    name: str | None = None
    """An older name of `model`."""
    verbose: bool | None = None
    """Whether long lists of a GGUF file's metadata are shown."""
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None
    """These three are accepted and not used."""


class ShownModel(msgspec.Struct, kw_only=True):
    """Facts about a model."""

    license: str = ""
    modelfile: str
    parameters: str
    template: str
    system: str = ""
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, kw_only=True):
    """The version of the API."""

    version: str
