"""Prompts of conversations with parts other than text: pictures, sounds and embeddings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.structs

from quire.chat.job import take_images
from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import PlacedRows, embeds_error, rows_among
from quire.images.job import MAX_REQUEST_SECONDS
from quire.images.modality import MODALITIES
from quire.server.conversation.chat_text import (
    chat_input,
    chat_text,
    check_messages,
    render_chat,
    template_fields,
)
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.message import ChatMessage, ContentPart
from quire.server.json_pieces import check_wanted
from quire.server.requests.embeds import decode_embeds
from quire.server.requests.limits import count_chars
from quire.server.requests.prompts import TENANT, PreparedPrompt, encode
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.frontend.inputs.images.prompts import ImagePrompts
    from quire.images.picture import Picture

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


async def media_prompt(model: ServedModel, chat: Conversation) -> PreparedPrompt | None:
    """The prompt of a conversation with such parts; None if it has none. Raises RequestError."""
    contents = [one.content for one in chat.messages if isinstance(one.content, list)]
    if any(_is_image(part) for content in contents for part in content):
        check_messages(model, chat)
        return await _chat_with_images(model, chat)
    taken = take_embeds(chat.messages)
    return None if taken is None else await _chat_with_embeds(model, chat, taken)


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
    for name, value in zip(template_fields(chat), [taken.messages, *plain[1:]], strict=False):
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


async def decoded_pictures(
    model: ServedModel, images: ImagePrompts, given: Sequence[Any], size: int, seconds: float = inf
) -> list[Picture]:
    """The pictures or sounds that a request gives, decoded off the event loop. `size`: characters
    of what is given. `seconds`: most time. Raises RequestError."""
    tenant = TENANT.get()
    return await model.pool.run_outside(size, images.decoded, given, tenant, check_wanted, seconds)


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
