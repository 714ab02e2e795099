"""The turns of a conversation in Anthropic's form as messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from quire.errors import RequestError, quoted
from quire.server.apis.messages.schema import Block, InputMessage, Source
from quire.server.conversation.message import ChatMessage, ContentPart

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a line that some clients put before their instructions. It differs from request to
request, so that no prompt would begin like the one before it."""

_PLAIN = ("text",)
_TEXT_TYPES = ("text", "document", "search_result", "tool_reference")


def wrong_block(path: str, message: str) -> RequestError:
    """The refusal of a block, or of what is missing in it; `path` is its place in the body."""
    return RequestError(f"{path}: {message}", parameter=path)


def required(path: str, block: Block, name: str) -> str:
    """A field that holds a text, which may not be empty. Raises RequestError."""
    value = getattr(block, name)
    if not value:
        raise wrong_block(f"{path}.{name}", f"a block of type {block.type} needs {name}")
    text: str = value
    return text


def texts_of(
    path: str, content: str | Sequence[Block] | None, types: Sequence[str] = _TEXT_TYPES
) -> list[str]:
    """The texts of content that may hold blocks of these types, without empty ones. Raises
    RequestError."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return [content] if content else []
    texts = [text_of(f"{path}[{index}]", block, types) for index, block in enumerate(content)]
    return [text for text in texts if text]


def text_of(path: str, block: Block, types: Sequence[str] = _TEXT_TYPES) -> str:
    """The text of a block, which is of one of these types. Raises RequestError."""
    if block.type == "image":
        raise wrong_block(path, "an image must be in a user's turn or in a tool's result")
    if block.type not in types:
        raise wrong_block(
            f"{path}.type",
            f"blocks of type {quoted(block.type)} are not supported here; those of type "
            f"{', '.join(types)} are",
        )
    if block.type == "text":
        if block.text is None:
            raise wrong_block(f"{path}.text", "a block of type text needs text")
        return block.text
    if block.type == "document":
        return _joined(block.title, block.context, _document(path, block))
    if block.type == "search_result":
        source = block.source if isinstance(block.source, str) else None
        return _joined(block.title, source, *texts_of(f"{path}.content", block.content, _PLAIN))
    return required(path, block, "tool_name")


def without_images(content: str | Sequence[Block] | None) -> str | Sequence[Block] | None:
    """The content of a tool's result without its images."""
    if not isinstance(content, list):
        return content
    return [block for block in content if block.type != "image"]


def image_part(path: str, block: Block) -> ContentPart:
    """The image of a block, as a part of a chat. Raises RequestError."""
    source = block.source
    if isinstance(source, Source) and source.type == "base64" and source.data:
        url = f"data:{source.media_type or 'image/png'};base64,{source.data}"
    elif isinstance(source, Source) and source.type == "url" and source.url:
        url = source.url
    else:
        raise wrong_block(
            f"{path}.source", "an image must have a source of type base64 with data, or url"
        )
    return ContentPart(type="image_url", image_url=url)


def instructions(path: str, content: str | Sequence[Block] | None) -> str:
    """The text of a system prompt, without the billing header. Raises RequestError."""
    return "".join(_without_header(text) for text in texts_of(path, content, _PLAIN))


def _without_header(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _document(path: str, block: Block) -> str:
    source = block.source
    if not isinstance(source, Source):
        raise wrong_block(f"{path}.source", "a block of type document needs a source")
    if isinstance(block.citations, dict) and block.citations.get("enabled"):
        raise wrong_block(
            f"{path}.citations", "citations are not supported; leave them out or disable them"
        )
    if source.type == "text" and source.media_type in (None, "text/plain"):
        return source.data or ""
    if source.type == "content":
        return _joined(*texts_of(f"{path}.source.content", source.content, _PLAIN))
    raise wrong_block(
        f"{path}.source",
        f"documents of type {quoted(source.type)} with media type {quoted(source.media_type)} are "
        "not supported; send their text, with the source type text and the media type text/plain",
    )


def _joined(*texts: str | None) -> str:
    return "\n\n".join(text for text in texts if text)


def chat_messages(
    system: str | Sequence[Block] | None, turns: Sequence[InputMessage], *, merges_system: bool
) -> list[ChatMessage]:
    """The conversation as the chat template gets it. Raises RequestError.

    `merges_system`: the template takes instructions only before all else; so those between the
    turns are added to `system`.
    """
    first = [instructions("system", system)]
    messages: list[ChatMessage] = []
    tool_names: dict[str, str] = {}
    places = [(f"messages[{index}]", turn) for index, turn in enumerate(turns)]
    for role, run in groupby(places, key=lambda place: place[1].role):
        if role == "system":
            texts = [instructions(f"{path}.content", turn.content) for path, turn in run]
            if merges_system:
                first += texts
            elif text := _paragraphs(texts):
                messages.append(ChatMessage(role="system", content=text))
            continue
        blocks = [block for path, turn in run for block in _blocks(path, turn)]
        if role == "user":
            messages += _user_messages(blocks, tool_names)
        else:
            messages.append(_assistant_message(blocks, tool_names))
    if text := _paragraphs(first):
        messages.insert(0, ChatMessage(role="system", content=text))
    return messages


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _blocks(path: str, turn: InputMessage) -> list[tuple[str, Block]]:
    if isinstance(turn.content, str):
        return [(f"{path}.content", Block(type="text", text=turn.content))]
    return [(f"{path}.content[{index}]", block) for index, block in enumerate(turn.content)]


def _user_messages(
    blocks: Sequence[tuple[str, Block]], tool_names: dict[str, str]
) -> list[ChatMessage]:
    results, parts = list[ChatMessage](), list[str | ContentPart]()
    for path, block in blocks:
        if block.type == "tool_result":
            call_id = required(path, block, "tool_use_id")
            inner = block.content if isinstance(block.content, list) else []
            # Templates take the results of tools as text, so their images come after them.
            parts += [
                image_part(f"{path}.content[{index}]", one)
                for index, one in enumerate(inner)
                if one.type == "image"
            ]
            results.append(
                ChatMessage(
                    role="tool",
                    tool_call_id=call_id,
                    name=tool_names.get(call_id),
                    content="\n".join(texts_of(f"{path}.content", without_images(block.content))),
                )
            )
        elif block.type == "image":
            parts.append(image_part(path, block))
        elif text := text_of(path, block):
            parts.append(text)
    content = _content(parts)
    if content or not results:
        results.append(ChatMessage(role="user", content=content))
    return results


def _content(parts: Sequence[str | ContentPart]) -> str | list[str | ContentPart]:
    if not parts or (len(parts) == 1 and isinstance(parts[0], str)):
        return "".join(map(str, parts))
    return [ContentPart(type="text", text=one) if isinstance(one, str) else one for one in parts]


def _assistant_message(
    blocks: Sequence[tuple[str, Block]], tool_names: dict[str, str]
) -> ChatMessage:
    reasoning, texts, calls = [], [], []
    for path, block in blocks:
        if block.type == "text":
            texts.append(text_of(path, block))
        elif block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type == "tool_use":
            call_id, name = required(path, block, "id"), required(path, block, "name")
            tool_names[call_id] = name
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            function = {"name": name, "arguments": arguments}
            calls.append({"id": call_id, "type": "function", "function": function})
        elif block.type != "redacted_thinking":  # which only Anthropic's servers can read
            raise wrong_block(
                f"{path}.type",
                f"an assistant's turn holds no blocks of type {quoted(block.type)}; it holds text, "
                "thinking, redacted_thinking and tool_use",
            )
    return ChatMessage(
        role="assistant",
        content="".join(texts) or (None if calls else ""),
        reasoning="".join(reasoning) or None,
        tool_calls=calls or None,
    )
