"""Converts a request's prompt or messages to the token ids for the engine.

Generation, `/tokenize` and the render endpoints use it, so that all give the same ids. Long texts
are rendered and tokenized in the server's `WorkPool`, off the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import msgspec.structs

from quire.chat.job import MEDIA, ChatInput, take_images
from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import PlacedRows, embeds_error, rows_among
from quire.frontend.inputs.tokenization import Truncation
from quire.images.job import MAX_REQUEST_SECONDS
from quire.parsers.tool_formats.json.generic import with_tools_in_words
from quire.server.apis.chat.reply_plan import ChatPrompt, ReplyPlan
from quire.server.apis.chat.schema import ChatMessage, ChatRequest, ContentPart, thinking_variables
from quire.server.apis.chat.tools import ToolUse
from quire.server.apis.text.schema import TokenizeRequest
from quire.server.generation.gaps import Gap, gap_prompt
from quire.server.generation.limits import count_chars
from quire.server.generation.prompts import (
    PreparedPrompt,
    decode_embeds,
    encode,
    prompt_ids,
    tenant_of_pictures,
)
from quire.server.served_model import ServedModel
from quire.server.work_pool import INLINE_SIZE, check_wanted

_TYPE = "prompt_embeds"


@dataclass(slots=True)
class TakenEmbeds:
    """A conversation with marks in place of the parts, and what the parts have, in order."""

    messages: list[ChatMessage] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    mark: str = field(default_factory=lambda: f"quire{secrets.token_hex(12)}")

    def around(self, text: str) -> list[str]:
        """The pieces of a rendered conversation around the marks. Raises RequestError unless the
        template has kept each of them."""
        pieces = text.split(self.mark)
        if len(pieces) != len(self.data) + 1:
            raise RequestError(
                f"the chat template must show each of the {len(self.data)} parts of type "
                f"{_TYPE} once, but it shows {len(pieces) - 1}",
                parameter="messages",
            )
        return pieces


def take_embeds(messages: Sequence[ChatMessage]) -> TakenEmbeds | None:
    """Takes all such parts out of the messages; None: there are none. Raises RequestError for a
    part without data."""
    contents = [one.content for one in messages if isinstance(one.content, list)]
    if not any(map(_is_taken, [part for content in contents for part in content])):
        return None
    taken = TakenEmbeds()
    for message in messages:
        content = message.content
        if isinstance(content, list):
            message = msgspec.structs.replace(
                message, content=[_without(part, taken) for part in content]
            )
        taken.messages.append(message)
    return taken


def _is_taken(part: str | ContentPart) -> bool:
    return isinstance(part, ContentPart) and part.type == _TYPE


def _without(part: str | ContentPart, taken: TakenEmbeds) -> str | ContentPart:
    if not isinstance(part, ContentPart) or not _is_taken(part):
        return part
    if part.data is None:
        raise embeds_error("a part of type prompt_embeds must have `data`, the base64 of a tensor")
    taken.data.append(part.data)
    return ContentPart(type="text", text=taken.mark)


async def planned_prompt(model: ServedModel, request: ChatRequest, tools: ToolUse) -> ChatPrompt:
    """The prompt of a chat, with the plan of its reply. Raises RequestError."""
    prompt = await chat_prompt(model, request)
    plan = await ReplyPlan.of(model, request, tools, prompt.text or "")
    predicted = await _predicted_ids(model, request)
    return ChatPrompt(
        prompt.token_ids,
        prompt.text,
        prompt.cache_salt,
        predicted,
        embeds=prompt.embeds,
        images=prompt.images,
        reply=plan,
    )


async def filled_prompt(gap: Gap, model: ServedModel, request: ChatRequest) -> ChatPrompt:
    """The prompt of a text with a gap; its reply is a plain text. Raises RequestError."""
    model.limits.check_text("prompt", gap.size)
    ids, ends = await model.pool.run(gap.size, gap_prompt, model, gap)
    return ChatPrompt(ids, None, request.cache_salt, end_token_ids=ends)


async def _predicted_ids(model: ServedModel, request: ChatRequest) -> list[int]:
    """Token ids of the reply that the client expects; at most as many as the context holds."""
    if request.prediction is None or model.config.scheduler.speculation is None:
        return []
    text = request.prediction.text
    ids = await model.pool.run(len(text), _ids_of_prediction, model, text)
    return ids[: model.limits.max_model_len]


def _ids_of_prediction(model: ServedModel, text: str) -> list[int]:
    return encode(model, text, False, must_fit=False)


async def chat_prompt(model: ServedModel, request: ChatRequest | TokenizeRequest) -> PreparedPrompt:
    """Renders the messages by the model's chat template. Raises RequestError."""
    if isinstance(request, ChatRequest) and (ids := _handed_ids(request)) is not None:
        text = model.tokenizer().decode(ids, skip_special_tokens=False)
        return PreparedPrompt(ids, text, request.cache_salt)
    messages = request.messages or []
    if any(isinstance(one.content, list) and any(map(_is_image, one.content)) for one in messages):
        _check_messages(model, request, messages)
        return await _chat_with_images(model, request, messages)
    if (taken := take_embeds(messages)) is not None:
        return await _chat_with_embeds(model, request, taken)
    text = await chat_text(model, request, messages)
    special = request.add_special_tokens is True
    salt = truncation = None
    if isinstance(request, ChatRequest):
        salt = request.cache_salt
        truncation = Truncation.of(
            request.truncate_prompt_tokens, request.truncation_side, model.limits.max_model_len
        )
    token_ids = await model.pool.run(len(text), prompt_ids, model, text, special, truncation)
    return PreparedPrompt(token_ids, text, salt)


async def chat_text(
    model: ServedModel, request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]
) -> str:
    """The text that the model's chat template makes of the messages. Raises RequestError."""
    _check_messages(model, request, messages)
    size = sum(len(text) for message in messages for text in message.texts)
    model.limits.check_text("messages", size)
    others = [getattr(request, name) for name in _TEMPLATE_FIELDS[1:]]
    size += count_chars(others, INLINE_SIZE)  # no further than it makes a difference
    await model.pool.run(size, _check_template_fields, model, request)
    chat = _chat_input(model, request, messages)
    chat = replace(chat, no_images=model.config.model.no_images)
    return await render_chat(model, chat, offers_tools=not _forbids_calls(request))


def _check_messages(
    model: ServedModel, request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]
) -> None:
    if len(messages) > model.args.max_messages:
        raise RequestError(
            f"{len(messages)} messages are more than this server allows in one request "
            f"(max_messages {model.args.max_messages}).",
            parameter="messages",
        )
    model.images().changed(getattr(request, "mm_processor_kwargs", None))
    if request.chat_template is not None:
        raise RequestError(
            "chat_template is refused: this server trusts no template from a request; "
            "give it one with --chat-template",
            parameter="chat_template",
        )


def _is_image(part: str | ContentPart) -> bool:
    if isinstance(part, str):
        return False
    given = (part.image_url, part.video_url, part.audio_url, part.input_audio)
    return any(one is not None for one in given) or any(kind in part.type for kind in MEDIA)


async def _chat_with_images(
    model: ServedModel, request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]
) -> PreparedPrompt:
    """The prompt of a chat with images. They are read and decoded off the event loop."""
    images = model.images()
    images.check_on("messages")
    images = images.changed(getattr(request, "mm_processor_kwargs", None))
    if getattr(request, "truncate_prompt_tokens", None) is not None:
        raise RequestError(
            "truncate_prompt_tokens is not supported with images",
            parameter="truncate_prompt_tokens",
        )
    chat, literals = _chat_input(model, request, messages), images.literals()
    plain = msgspec.to_builtins([chat.messages, chat.tools, chat.documents])
    taken = take_images(plain[0], literals.hidden)
    images.check_number(taken.images)
    size = 0
    for name, value in zip(_TEMPLATE_FIELDS, [taken.messages, *plain[1:]], strict=False):
        size += count_chars(value, model.limits.max_tokenize_bytes)
        model.limits.check_text(name, size)
    size = count_chars(plain[0], _MOST_CHARS)
    salt = request.cache_salt if isinstance(request, ChatRequest) else None
    tenant = tenant_of_pictures(salt)
    pictures = await model.pool.run_outside(
        size, images.decoded, taken.images, tenant, check_wanted, MAX_REQUEST_SECONDS
    )
    chat = replace(
        chat,
        messages=taken.messages,
        tools=literals.hidden(plain[1]),
        documents=literals.hidden(plain[2]),
    )
    chat = images.with_placeholders(chat)
    text = await render_chat(model, chat, offers_tools=not _forbids_calls(request))
    special = request.add_special_tokens is True
    placed = await model.pool.run(
        len(text) + INLINE_SIZE,
        images.in_chat,
        text,
        literals,
        pictures,
        lambda given: encode(model, given, special),
    )
    return PreparedPrompt(placed.token_ids, text, salt, images=placed)


async def _chat_with_embeds(
    model: ServedModel, request: ChatRequest | TokenizeRequest, taken: TakenEmbeds
) -> PreparedPrompt:
    """The prompt of a chat with rows in place of embeddings. The text around them is tokenized
    piece by piece."""
    if getattr(request, "truncate_prompt_tokens", None) is not None:
        raise embeds_error("truncate_prompt_tokens is not supported with prompt_embeds")
    size = sum(map(len, taken.data))
    arrays = await model.pool.run(size, lambda: [decode_embeds(model, one) for one in taken.data])
    pieces = taken.around(await chat_text(model, request, taken.messages))
    special = request.add_special_tokens is True
    block_size = model.loaded_engine().config.cache.block_size

    def placed() -> PlacedRows:
        parts = [encode(model, one, special and not i) for i, one in enumerate(pieces)]
        return rows_among(parts, arrays, block_size)

    rows = await model.pool.run(sum(map(len, pieces)), placed)
    salt = request.cache_salt if isinstance(request, ChatRequest) else None
    return PreparedPrompt(rows.token_ids, "".join(pieces), salt, embeds=rows)


def _handed_ids(request: ChatRequest) -> list[int] | None:
    """The prompt that another engine has made of the messages, if the request has it."""
    ids = (request.kv_transfer_params or {}).get("prompt_token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise RequestError(
            "kv_transfer_params.prompt_token_ids must be a list of token ids",
            parameter="kv_transfer_params",
        )
    return ids


_MOST_CHARS = 1 << 30
_TEMPLATE_FIELDS = ("messages", "tools", "documents", "chat_template_kwargs")
"""Fields that the template gets, in the order in which they count against the limit."""


def _check_template_fields(model: ServedModel, request: ChatRequest | TokenizeRequest) -> None:
    limits, size = model.limits, 0
    for name in _TEMPLATE_FIELDS:
        size += count_chars(getattr(request, name), limits.max_tokenize_bytes)
        limits.check_text(name, size)


def _chat_input(
    model: ServedModel, request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]
) -> ChatInput:
    own, variables = request.chat_template_kwargs or {}, model.args.default_chat_template_kwargs
    if request.reasoning_effort is not None:
        effort = model.args.template_effort(request.reasoning_effort)
        own = {**thinking_variables(effort), **own, "reasoning_effort": effort}
    args = model.args
    hides_tools = args.exclude_tools_when_tool_choice_none and _forbids_calls(request)
    content_format = args.chat_template_content_format
    return ChatInput(
        messages,
        tools=None if hides_tools else request.tools or None,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=request.continue_final_message is True,
        variables={**variables, **own},
        content_format=None if content_format == "auto" else content_format,
    )


def _forbids_calls(request: ChatRequest | TokenizeRequest) -> bool:
    return isinstance(request, ChatRequest) and request.forbids_calls


async def render_chat(model: ServedModel, chat: ChatInput, *, offers_tools: bool) -> str:
    """The prompt. `offers_tools`: the reply may call the chat's tools. Raises RequestError."""
    renderer = model.chat_renderer()
    if not chat.tools or not offers_tools or not await model.describes_tools_in_words():
        return await renderer.render(chat)
    messages, tools = msgspec.to_builtins([chat.messages, chat.tools])
    described = replace(chat, messages=with_tools_in_words(messages, tools), tools=None)
    try:
        return await renderer.render(described)
    except RequestError:  # some templates refuse a system message
        words = with_tools_in_words(messages, tools, has_system=False)
        return await renderer.render(replace(described, messages=words))
