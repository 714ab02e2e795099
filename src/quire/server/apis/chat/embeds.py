"""Content parts `prompt_embeds` of a conversation: rows in place of the embeddings of a text.

A mark that no user can know stands for each of them while the chat template is rendered.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import embeds_error
from quire.server.apis.chat.schema import ChatMessage, ContentPart

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
            message = replace(message, content=[_without(part, taken) for part in content])
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
