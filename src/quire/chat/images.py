"""Takes the images out of a conversation, for the front end to decode, and leaves a mark of each.

A template that loops over the content of messages gets a part `{"type": "image"}`; for others the
placeholder is written before the message's text, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import RequestError

_IMAGE_TYPES = ("image_url", "input_image", "image_pil", "image")
IMAGE_PART = {"type": "image"}
"""An image in the form that templates get."""


@dataclass(slots=True)
class TakenImages:
    """A conversation without its images, and what they were, in order."""

    messages: list[Any]
    images: list[Any] = field(default_factory=list)
    """URLs, or in offline use Pillow images."""


def is_image(part: Any) -> bool:
    """Whether a part of a message's content is an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in _IMAGE_TYPES or (kind is None and any(one in part for one in _IMAGE_TYPES))


def has_images(messages: Any) -> bool:
    """Whether any message has an image."""
    if not isinstance(messages, Sequence):
        return False
    contents = [one.get("content") for one in messages if isinstance(one, Mapping)]
    return any(isinstance(one, list | tuple) and any(map(is_image, one)) for one in contents)


def take_images(messages: Sequence[Any], hide: Callable[[Any], Any]) -> TakenImages:
    """Takes the images of all messages. `hide` replaces what looks like a placeholder in texts.
    Raises RequestError for a part without an image."""
    taken = TakenImages([])
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            taken.messages.append(hide(message))
            continue
        parts: list[Any] = []
        for place, part in enumerate(content):
            if is_image(part):
                where = f"messages[{index}].content[{place}]"
                taken.images.append(_source(part, where))
                parts.append(dict(IMAGE_PART))
            else:
                parts.append(hide(part))
        others = hide({name: value for name, value in message.items() if name != "content"})
        taken.messages.append({**others, "content": parts})
    return taken


def _source(part: Mapping[str, Any], where: str) -> Any:
    """The URL or the picture of a part."""
    for name in ("image_url", "image_pil", "image", "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if value is not None:
            return value
    raise RequestError(f"{where} must have the URL of an image", parameter="messages")
