"""Turns of Anthropic's form as messages of a chat.

Turns of one role that follow each other are one, as in Anthropic's API. Results of tools, which
stand in a user's turn, are messages of their own, before the rest of the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from quire.errors import quoted
from quire.server.apis.chat.schema import ChatMessage, ContentPart
from quire.server.apis.messages.schema import Block, InputMessage
from quire.server.apis.messages.texts import (
    image_part,
    instructions,
    required,
    text_of,
    texts_of,
    without_images,
    wrong_block,
)


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
    """The blocks of a turn, with their places in the body."""
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
    """What `/v1/chat/completions` would have answered: reasoning, the answer, calls."""
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
