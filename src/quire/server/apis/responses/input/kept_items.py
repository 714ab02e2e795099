"""Items as the store keeps them: whole, each with an id of its own, in the words of the API."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quire.errors import RequestError
from quire.server.apis.responses.input.messages import kind_of
from quire.server.apis.responses.schema.items import (
    CustomToolCall,
    FunctionCall,
    Item,
    ItemPart,
    OutputItem,
    OutputMessage,
)
from quire.server.apis.responses.store.entry import StoredItem

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
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
        status=item.status or ("completed" if kind != "reasoning" else None),
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
