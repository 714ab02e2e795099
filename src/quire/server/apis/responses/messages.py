"""Items as the messages of a conversation, and items that the store keeps: what the model said in
one turn becomes one message."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.apis.responses.items_schema import (
    CustomToolCall,
    FunctionCall,
    Item,
    ItemPart,
    OutputItem,
    OutputMessage,
)
from quire.server.apis.responses.store import StoredItem
from quire.server.apis.responses.summaries import summary_of
from quire.server.apis.responses.tools import custom_arguments, flat_name
from quire.server.conversation.chat_text import texts_of
from quire.server.conversation.message import ChatMessage, ContentPart

_Placed = tuple[str, Item]
"""An item and its place in the body."""
_ROLES = ("user", "assistant", "system", "developer")
_INSTRUCTING = ("system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")


def chat_messages(
    instructions: str | None, items: Sequence[Item], num_earlier: int = 0
) -> list[ChatMessage]:
    """The conversation. `num_earlier`: items at the beginning that are those of earlier responses.
    Raises RequestError for an item that cannot be shown to the model, which names its place.

    Instructions, and what instructs the model at the beginning of the items, are one message:
    templates have a place for one.
    """
    messages: list[ChatMessage] = []
    placed = [(_place(index - num_earlier), item) for index, item in enumerate(items)]
    if instructions:
        texts, placed = _instructing(placed)
        messages.append(ChatMessage(role="system", content="\n\n".join([instructions, *texts])))
    called: set[str | None] = set()
    for place, item in placed:
        kind = kind_of(item)
        if kind == "message":
            _add_message(messages, item, place)
        elif kind == "reasoning":
            if reasoning := _reasoning(item, place):
                messages.append(ChatMessage(role="assistant", reasoning=reasoning))
        elif kind in ("function_call", "custom_tool_call"):
            called.add(item.call_id)
            _add_call(messages, _call(item, kind, place))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if item.call_id not in called:
                raise _wrong(
                    f"{place}.call_id",
                    f"No tool call found for {kind} with call_id {quoted(item.call_id)}: the call "
                    "comes before its output, in the input or in a previous response",
                )
            messages.append(
                ChatMessage(role="tool", tool_call_id=item.call_id, content=_output(item, place))
            )
        elif kind == "compaction":
            summary = summary_of(item.encrypted_content, f"{place}.encrypted_content")
            _join_users(messages)
            messages.append(ChatMessage(role="assistant", content=summary))
        elif kind is None:
            raise _wrong(f"{place}.type", "an item needs a `type`, or the `role` of a message")
        else:
            raise _wrong(
                f"{place}.type",
                f"items of type {quoted(kind)} cannot be shown to a model here; the types are "
                "message, reasoning, function_call, function_call_output, custom_tool_call, "
                "custom_tool_call_output, compaction and item_reference",
            )
    if not messages:
        raise RequestError("the input must not be empty", parameter="input")
    return messages


def _place(index: int) -> str:
    return f"input[{index}]" if index >= 0 else "previous_response_id"


def kind_of(item: Item) -> str | None:
    """The type of an item: without one, a message has a role, and a reference an id alone."""
    if item.type is not None:
        return item.type
    if item.role is not None:
        return "message"
    return "item_reference" if item.id is not None else None


def is_unfinished(item: Item) -> bool:
    """Whether it is a message of the model that the reply is to go on with, as in vLLM."""
    is_message = kind_of(item) == "message" and item.role == "assistant"
    return is_message and item.status in ("in_progress", "incomplete")


def _instructing(placed: list[_Placed]) -> tuple[list[str], list[_Placed]]:
    """The texts of the messages at the beginning that instruct the model, and the other items."""
    count = 0
    while count < len(placed) and _instructs(placed[count][1]):
        count += 1
    contents = [_content(item.content, f"{place}.content") for place, item in placed[:count]]
    texts = ["\n".join(texts_of(ChatMessage(role="system", content=each))) for each in contents]
    return texts, placed[count:]


def _instructs(item: Item) -> bool:
    return kind_of(item) == "message" and item.role in _INSTRUCTING


def _add_message(messages: list[ChatMessage], item: Item, place: str) -> None:
    if item.role not in _ROLES:
        raise _wrong(
            f"{place}.role",
            f"the role of a message is one of {', '.join(_ROLES)}, got {quoted(item.role)}",
        )
    content = _content(item.content, f"{place}.content")
    last = messages[-1] if messages else None
    if last is not None and item.role == "assistant" and _is_reasoning_alone(last):
        last.content = content
    else:
        messages.append(ChatMessage(role=item.role, content=content))


def _join_users(messages: list[ChatMessage]) -> None:
    """Makes one message of the user's last ones: the templates of some models refuse messages of
    the user one after the other, and a compaction leaves only those."""
    first = len(messages)
    while first and messages[first - 1].role == "user":
        first -= 1
    if len(messages) - first > 1:
        parts = list[str | ContentPart]()
        for message in messages[first:]:
            content = message.content or ""
            parts += [content] if isinstance(content, str) else content
        messages[first:] = [ChatMessage(role="user", content=parts)]


def _is_reasoning_alone(message: ChatMessage) -> bool:
    is_alone = message.content is None and message.tool_calls is None
    return message.role == "assistant" and is_alone


def _add_call(messages: list[ChatMessage], call: dict[str, Any]) -> None:
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant"))
    message = messages[-1]
    if message.tool_calls is None:
        message.tool_calls = []
    message.tool_calls.append(call)


def _call(item: Item, kind: str, place: str) -> dict[str, Any]:
    for field in ("call_id", "name"):
        if not getattr(item, field):
            raise _wrong(f"{place}.{field}", f"a {kind} needs a `call_id` and a `name`")
    if kind == "custom_tool_call":
        arguments = custom_arguments(item.input or "")
    else:
        arguments = item.arguments or "{}"
    name = flat_name(item.namespace, item.name or "")
    function = {"name": name, "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _reasoning(item: Item, place: str) -> str:
    if item.encrypted_content:
        raise _wrong(
            f"{place}.encrypted_content",
            "Encrypted content is not supported: send the reasoning as `content`, or leave the "
            "item out",
        )
    name = "content" if item.content else "summary"
    parts = getattr(item, name) or []
    if isinstance(parts, str):
        return parts
    texts = (_text(part, f"{place}.{name}[{index}]") for index, part in enumerate(parts))
    return "".join(texts)


def _output(item: Item, place: str) -> str | list[str | ContentPart]:
    if item.output is None:
        raise _wrong(f"{place}.output", f"the output of {quoted(item.call_id)} is missing")
    return _content(item.output, f"{place}.output")


def _content(content: str | list[ItemPart] | None, place: str) -> str | list[str | ContentPart]:
    """A text; parts where there are several."""
    if isinstance(content, str):
        return content
    if content is None:
        raise _wrong(place, "a message needs a `content`: a text, or a list of parts")
    if len(content) == 1 and content[0].type not in ("input_image", "input_audio"):
        return _text(content[0], f"{place}[0]")
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: ItemPart, place: str) -> ContentPart:
    if part.type == "input_image":
        return _image(part, place)
    if part.type == "input_audio":
        return ContentPart(type="input_audio", input_audio=part.input_audio)
    return ContentPart(type="text", text=_text(part, place))


def _image(part: ItemPart, place: str) -> ContentPart:
    if part.file_id is not None or not part.image_url:
        raise _wrong(
            f"{place}.image_url",
            "input_image must have an `image_url`; files cannot be stored here",
        )
    return ContentPart(type="image_url", image_url=part.image_url)


def _text(part: ItemPart, place: str) -> str:
    if part.type not in _TEXT_PARTS:
        raise _wrong(
            f"{place}.type",
            f"parts of type {quoted(part.type)} are not supported here; text, images and sounds go "
            "in: input_text, output_text, input_image, input_audio",
        )
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise _wrong(f"{place}.{name}", f"a part of type {part.type} needs a `{name}`")
    return text


def _wrong(place: str, message: str) -> RequestError:
    return RequestError(f"{place}: {message}", parameter=place)


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
_decode = msgspec.json.Decoder(Item).decode


def input_items(given: str | Sequence[Item] | None) -> list[Item]:
    """The items of an input. Raises RequestError if there is none."""
    if given is None:
        raise RequestError("input is required: a text, or a list of items", parameter="input")
    if isinstance(given, str):
        return [Item(type="message", role="user", content=given)]
    return list(given)


def kept_item(item: Item) -> StoredItem:
    """An item of an input with a new, random id: a caller's id may be guessed, and a stored item is
    found by its id alone."""
    return stored_item(_complete(item))


def stored_item(item: Item) -> StoredItem:
    """An item that has an id."""
    return StoredItem(item.id or "", msgspec.json.encode(item))


def restored(items: Iterable[StoredItem]) -> list[Item]:
    """The items themselves."""
    return [_decode(item.data) for item in items]


def as_input(item: OutputItem) -> Item:
    """An item of a reply as a later request sends it back."""
    if isinstance(item, OutputMessage):
        parts = [_output_text(part.text) for part in item.content]
        return Item(type="message", id=item.id, role="assistant", status=item.status, content=parts)
    if isinstance(item, FunctionCall):
        return Item(type="function_call", arguments=item.arguments, **_of_call(item))
    if isinstance(item, CustomToolCall):
        return Item(type="custom_tool_call", input=item.input, **_of_call(item))
    parts = [ItemPart(type="reasoning_text", text=part.text) for part in item.content]
    return Item(type="reasoning", id=item.id, status=item.status, summary=[], content=parts)


def _of_call(item: FunctionCall | CustomToolCall) -> dict[str, Any]:
    names = ("id", "call_id", "name", "namespace", "status")
    return {name: getattr(item, name) for name in names}


def _complete(item: Item) -> Item:
    kind = kind_of(item) or "message"
    kept = msgspec.structs.replace(
        item,
        type=kind,
        id=f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}",
        status=item.status or (None if kind in ("reasoning", "compaction") else "completed"),
    )
    if kind == "message":
        is_models = item.role == "assistant"
        if isinstance(item.content, str):
            text = item.content
            part = _output_text(text) if is_models else ItemPart(type="input_text", text=text)
            kept.content = [part]
    elif kind == "reasoning":
        kept.summary = item.summary or []
        if isinstance(item.content, str):
            kept.content = [ItemPart(type="reasoning_text", text=item.content)]
    return kept


def _output_text(text: str) -> ItemPart:
    return ItemPart(type="output_text", text=text, annotations=[])
