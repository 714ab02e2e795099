"""Makes the prompt of a conversation: the token ids for the engine.

Generation, `/tokenize` and the render endpoints use it, so that all give the same ids. Long texts
are rendered and tokenized in the server's `WorkPool`, off the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
import msgspec.structs

from quire.chat.job import VARIABLES, ChatInput, take_images
from quire.config.model_lookup.settings import messages_of
from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import PlacedRows, embeds_error, rows_among
from quire.frontend.inputs.refusals import only_hears
from quire.frontend.inputs.tokenization import Truncation
from quire.frontend.kv_hand_off import FIELD as TRANSFER
from quire.images.job import MAX_REQUEST_SECONDS
from quire.images.modality import MODALITIES
from quire.server.conversation.conversation import (
    ChatMessage,
    ContentPart,
    Conversation,
    thinking_variables,
)
from quire.server.conversation.reply_plan import ChatPrompt, ReplyPlan
from quire.server.requests.limits import count_chars
from quire.server.requests.prompts import (
    PreparedPrompt,
    decode_embeds,
    decoded_pictures,
    encode,
    tokenized,
)
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel

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


class PromptSource(Protocol):
    """The source of prompts that are not conversations."""

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The prompts, in order. Raises RequestError."""


AnySource = Conversation | list[Conversation] | PromptSource


async def prompts_of(
    model: ServedModel, asked: AnyRequest, *, has_reply: bool = True
) -> list[PreparedPrompt]:
    """The prompts of a request, in order; those of conversations have the plans of their replies,
    if replies are asked for (`has_reply`). Raises RequestError."""
    source: AnySource = asked.prompt
    if not isinstance(source, Conversation | list):
        return await source.prompts(model, asked)
    made: list[PreparedPrompt] = []
    for chat in [source] if isinstance(source, Conversation) else source:
        make = _planned_prompt if has_reply else _requested_prompt
        made.append(await make(model, asked, chat))
    return made


async def _planned_prompt(model: ServedModel, asked: AnyRequest, chat: Conversation) -> ChatPrompt:
    prompt = await _requested_prompt(model, asked, chat)
    plan = await ReplyPlan.of(model, asked, chat, prompt.text or "")
    predicted = await _predicted_ids(model, asked)
    return ChatPrompt(
        prompt.token_ids,
        prompt.text,
        predicted_token_ids=predicted,
        embeds=prompt.embeds,
        images=prompt.images,
        chat=chat,
        reply=plan,
    )


async def _predicted_ids(model: ServedModel, asked: AnyRequest) -> list[int]:
    """Token ids of the reply that the client expects; at most as many as the context holds."""
    text = asked.predicted
    if text is None or model.config.scheduler.speculation is None:
        return []
    ids = await model.pool.run(len(text), _ids_of_prediction, model, text)
    return ids[: model.limits.max_model_len]


def _ids_of_prediction(model: ServedModel, text: str) -> list[int]:
    return encode(model, text, False, must_fit=False)


async def _requested_prompt(
    model: ServedModel, asked: AnyRequest, chat: Conversation
) -> PreparedPrompt:
    """The prompt that another engine has made of the messages, if the request has it; otherwise the
    template's. Raises RequestError."""
    extra = asked.sampling.get("extra_args") or {}
    ids = (extra.get(TRANSFER) or {}).get("prompt_token_ids")
    if ids is None:
        return _after(chat.earlier_token_ids, await chat_prompt(model, chat), model)
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise RequestError(
            f"{TRANSFER}.prompt_token_ids must be a list of token ids", parameter=TRANSFER
        )
    return PreparedPrompt(ids, model.tokenizer().decode(ids, skip_special_tokens=False))


def _after(earlier: Sequence[int], prompt: PreparedPrompt, model: ServedModel) -> PreparedPrompt:
    """The prompt after these tokens, without a second start token."""
    if not earlier:
        return prompt
    tokenizer, own = model.tokenizer(), prompt.token_ids
    start = tokenizer.encode("a", add_special_tokens=True)[:1]
    is_second = own[:1] == start == [tokenizer.bos_token_id]
    return replace(prompt, token_ids=[*earlier, *own[is_second:]])


async def chat_prompt(model: ServedModel, chat: Conversation) -> PreparedPrompt:
    """Renders the messages by the model's chat template. Raises RequestError."""
    messages = chat.messages
    if any(isinstance(one.content, list) and any(map(_is_image, one.content)) for one in messages):
        _check_messages(model, chat)
        return await _chat_with_images(model, chat)
    if (taken := take_embeds(messages)) is not None:
        return await _chat_with_embeds(model, chat, taken)
    text = await chat_text(model, chat)
    truncation = None
    if chat.most_tokens is not None:
        truncation = Truncation.of(chat.most_tokens, chat.cut_side, model.limits.max_model_len)
    token_ids = await tokenized(model, text, chat.add_special_tokens, truncation)
    return PreparedPrompt(token_ids, text)


async def chat_text(model: ServedModel, chat: Conversation) -> str:
    """The text that the model's chat template makes of the messages. Raises RequestError."""
    _check_messages(model, chat)
    size = sum(len(text) for message in chat.messages for text in message.texts)
    model.limits.check_text("messages", size)
    fields = _template_fields(chat)
    size += count_chars([*fields.values()][1:])
    await model.pool.run(size, _check_template_fields, model, fields)
    given = replace(chat_input(model, chat), no_images=model.config.model.no_images)
    return await render_chat(model, given, offers_tools=not chat.forbids_calls)


def _check_messages(model: ServedModel, chat: Conversation) -> None:
    if len(chat.messages) > model.args.max_messages:
        raise RequestError(
            f"{len(chat.messages)} messages are more than this server allows in one request "
            f"(max_messages {model.args.max_messages}).",
            parameter="messages",
        )
    if chat.image_options:
        model.images().changed(chat.image_options)


def _is_image(part: str | ContentPart) -> bool:
    if isinstance(part, str):
        return False
    given = (part.image_url, part.video_url, part.audio_url, part.input_audio)
    return any(one is not None for one in given) or any(kind in part.type for kind in MODALITIES)


async def _chat_with_images(model: ServedModel, chat: Conversation) -> PreparedPrompt:
    """The prompt of a chat with images. They are read and decoded off the event loop."""
    images = model.images()
    images.check_on("messages")
    images = images.changed(chat.image_options)
    if chat.most_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens is not supported with images",
            parameter="truncate_prompt_tokens",
        )
    given, literals = chat_input(model, chat), images.literals()
    plain = msgspec.to_builtins([given.messages, given.tools, given.documents])
    taken = take_images(plain[0], literals.hidden)
    images.check_number(taken.images)
    size = 0
    for name, value in zip(_template_fields(chat), [taken.messages, *plain[1:]], strict=False):
        size += count_chars(value, model.limits.max_tokenize_bytes)
        model.limits.check_text(name, size)
    size = count_chars(plain[0], _MOST_CHARS)
    pictures = await decoded_pictures(model, images, taken.images, size, MAX_REQUEST_SECONDS)
    given = replace(
        given,
        messages=taken.messages,
        tools=literals.hidden(plain[1]),
        documents=literals.hidden(plain[2]),
    )
    given = images.with_placeholders(given)
    text = await render_chat(model, given, offers_tools=not chat.forbids_calls)
    placed = await model.pool.run_on_thread(
        len(text),
        images.in_chat,
        text,
        literals,
        pictures,
        lambda piece: encode(model, piece, chat.add_special_tokens),
    )
    return PreparedPrompt(placed.token_ids, text, images=placed)


async def _chat_with_embeds(
    model: ServedModel, chat: Conversation, taken: TakenEmbeds
) -> PreparedPrompt:
    """The prompt of a chat with rows in place of embeddings. The text around them is tokenized
    piece by piece."""
    if chat.most_tokens is not None:
        raise embeds_error("truncate_prompt_tokens is not supported with prompt_embeds")
    size = sum(map(len, taken.data))
    arrays = await model.pool.run(size, lambda: [decode_embeds(model, one) for one in taken.data])
    pieces = taken.around(await chat_text(model, replace(chat, messages=taken.messages)))
    special = chat.add_special_tokens
    block_size = model.loaded_engine().config.cache.block_size

    def placed() -> PlacedRows:
        parts = [encode(model, one, special and not i) for i, one in enumerate(pieces)]
        return rows_among(parts, arrays, block_size)

    rows = await model.pool.run(sum(map(len, pieces)), placed)
    return PreparedPrompt(rows.token_ids, "".join(pieces), embeds=rows)


_MOST_CHARS = 1 << 30


def _template_fields(chat: Conversation) -> dict[str, Any]:
    """Variables of the template, in the order in which they count against the limit."""
    return {
        "messages": chat.messages,
        "tools": chat.tools,
        "documents": chat.documents,
        VARIABLES: chat.variables,
    }


def _check_template_fields(model: ServedModel, fields: dict[str, Any]) -> None:
    limits, size = model.limits, 0
    for name, value in fields.items():
        size += count_chars(value, limits.max_tokenize_bytes)
        limits.check_text(name, size)


def chat_input(model: ServedModel, chat: Conversation) -> ChatInput:
    """The conversation as the renderer takes it."""
    own, args = chat.variables or {}, model.args
    if chat.effort is not None:
        effort = args.template_effort(chat.effort)
        own = {**thinking_variables(effort), **own, "reasoning_effort": effort}
    hides_tools = args.exclude_tools_when_tool_choice_none and chat.forbids_calls
    content_format = args.chat_template_content_format
    return ChatInput(
        with_system_prompt(chat.messages, args.system_prompt, args.first_messages or ()),
        tools=None if hides_tools else chat.tools or None,
        documents=chat.documents,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables={**args.default_chat_template_kwargs, **own},
        content_format=None if content_format == "auto" else content_format,
    )


def with_system_prompt(
    messages: list[ChatMessage], text: str, first: Sequence[str] = ()
) -> list[ChatMessage]:
    """The messages, after a system message with this text if they have none, and after the `first`
    ones; a system message of the request stays in front."""
    if first:
        head = messages[:1] if messages and _is_system(messages[0]) else []
        own = [ChatMessage(role=one["role"], content=one["content"]) for one in messages_of(first)]
        messages = [*head, *own, *messages[len(head) :]]
    if not text or any(_is_system(one) for one in messages):
        return messages
    return [ChatMessage(role="system", content=text), *messages]


def _is_system(message: ChatMessage) -> bool:
    return message.role in ("system", "developer")


async def render_chat(model: ServedModel, chat: ChatInput, *, offers_tools: bool) -> str:
    """The prompt. `offers_tools`: the reply may call the chat's tools. Raises RequestError."""
    if model.config.model.num_sources:
        raise RequestError(only_hears(model.config.model), parameter="model")
    renderer = model.chat_renderer()
    if not chat.tools or not offers_tools or not await model.describes_tools_in_words():
        return await renderer.render(chat)
    from quire.parsers.tool_formats.in_words import with_tools_in_words  # rarely used

    messages, tools = msgspec.to_builtins([chat.messages, chat.tools])
    described = replace(chat, messages=with_tools_in_words(messages, tools), tools=None)
    try:
        return await renderer.render(described)
    except RequestError:  # some templates refuse a system message
        words = with_tools_in_words(messages, tools, has_system=False)
        return await renderer.render(replace(described, messages=words))
