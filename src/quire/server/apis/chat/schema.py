"""`/v1/chat/completions`: the request, the reply, and the chunks of a streamed one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from quire.server.args import ReasoningEffort
from quire.server.conversation.message import ChatMessage, ContentPart, FunctionDefinition, Tool
from quire.server.requests import fields


class Prediction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reply that the client expects, such as a file of which little changes."""

    type: Literal["content"] = "content"
    content: str | list[str | ContentPart]

    @property
    def text(self) -> str:
        """Its parts, one after the other."""
        if isinstance(self.content, str):
            return self.content
        return "".join(one if isinstance(one, str) else one.words for one in self.content)


class ToolFields(fields.GenerationFields, kw_only=True):
    """The fields of a chat that describe its tools."""

    tools: list[Tool] | None = None
    """Shown to the model, which may call them."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, the default: the reply may call tools; `none`; `required`: the reply consists of
    calls; or one tool that it calls, or some that it may call."""
    parallel_tool_calls: bool | None = True
    """Whether a reply may have several calls."""
    functions: list[FunctionDefinition] | None = None
    """OpenAI's earlier name of `tools`; a reply has one `function_call`."""
    function_call: str | dict[str, Any] | None = None
    """The same for `tool_choice`."""


class ChatFields(ToolFields, kw_only=True):
    """All fields of a chat request except its conversation or conversations."""

    is_chat: ClassVar[bool] = True

    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    """Add the model's start token, which most templates write themselves."""
    documents: list[dict[str, str]] | None = None
    """Shown to the chat template."""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    reasoning_effort: ReasoningEffort | None = None
    """Shown to the chat template."""
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    max_completion_tokens: fields.Int64 | None = None
    """Most tokens to generate; by default all that the context has room for."""
    logprobs: bool | None = False
    top_logprobs: fields.Int64 | None = None
    echo: bool | None = False
    """Begin the reply with the last message, if it has the reply's role."""
    return_prompt_text: bool | None = None
    reasoning_format: Literal["auto", "none", "deepseek"] | None = None
    """Field of a reply that holds its reasoning, by llama-server's names. `deepseek`:
    `reasoning_content`; `none`: the content, between its tags; otherwise `reasoning`."""
    include_reasoning: bool | None = True
    """Whether the reply includes the reasoning."""
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    prediction: Prediction | None = None
    """The expected reply. It makes the reply faster and does not change it."""
    service_tier: str | None = None
    """Accepted; there is one tier."""
    verbosity: str | None = None
    """Accepted; it has no effect."""
    store: bool | None = None
    """Accepted; nothing is stored."""
    metadata: dict[str, Any] | None = None
    """Accepted for the caller's own records; it has no effect."""
    safety_identifier: str | None = None
    """Accepted for the caller's own records; it has no effect."""
    prompt_cache_key: str | None = None
    """Accepted: prompts with the same beginning share the cache without a key."""
    prompt_cache_retention: str | None = None
    """Accepted: the cache keeps as much as fits."""


Conversation = Annotated[list[ChatMessage], Meta(min_length=1)]


class ChatRequest(ChatFields, kw_only=True):
    """A conversation to be continued."""

    messages: Conversation


class BatchChatRequest(ChatFields, kw_only=True):
    """Conversations to be continued, each by one choice of the reply."""

    messages: Annotated[list[Conversation], Meta(min_length=1)]


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function that the model calls."""

    name: str
    arguments: str
    """A JSON text, as the model wrote it: cut short if the reply was."""


class ReplyToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool. The result is sent back with its id."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ReplyMessage(msgspec.Struct, kw_only=True):
    """The model's message."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: CalledFunction | None = None
    reasoning: str | msgspec.UnsetType | None = None
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET
    """The same, where a request asks for it by this name."""
    tool_calls: list[ReplyToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One reply of `n`."""

    index: fields.Count
    message: ReplyMessage
    logprobs: fields.ChatLogprobs | None = None
    finish_reason: fields.FinishReasonText | None
    stop_reason: int | str | None = None
    """The stop string or token that ended it; null for end-of-sequence and all other ends."""
    token_ids: list[fields.TokenId] | None = None


class ChatResponse(fields.WholeReplyFields, kw_only=True):
    """A whole reply."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    service_tier: None = None
    prompt_logprobs: fields.ReplyPromptLogprobs | None = None
    prompt_token_ids: list[fields.TokenId] | None = None
    prompt_text: str | None = None


class DeltaFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of a function call: first the name, then the arguments."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of a call. Its id and name come first, and once."""

    index: fields.Count
    id: str | None = None
    type: str | None = None
    function: DeltaFunction


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of the model's message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None
    function_call: DeltaFunction | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """New parts of one reply."""

    index: fields.Count
    delta: Delta
    logprobs: fields.ChatLogprobs | None = None
    finish_reason: fields.FinishReasonText | None = None
    stop_reason: int | str | None = None
    token_ids: list[fields.TokenId] | None = None


class ChatChunk(fields.ChunkFields, kw_only=True):
    """One event of a streamed reply."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[fields.TokenId] | msgspec.UnsetType = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET
