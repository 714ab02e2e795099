"""The inputs and limits of a rendering: `ChatInput` from the caller, `RenderJob` for the child; and
the images of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.errors import RequestError
from quire.units import MiB

ContentFormat = Literal["string", "openai"]
"""Whether a template wants the content of a message as text, or as a list of parts."""

DEFAULT_SECONDS = 5.0
"""Default limit of a rendering's processor time."""
TOO_LONG = "it takes more than {:g} s of processor time"
MAX_NESTING = 64
"""Most levels of lists and dicts in a template's variables."""
MAX_STEPS = 1_000_000
"""Most rounds of loops, calls, filters, operators and printed values in one rendering."""
MAX_TEXT = 1 << 24
"""Most characters of the prompt, and of any single value as text."""
MAX_MEMORY_BYTES = 512 * MiB
"""Most memory of the child process."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation and the options of its rendering."""

    messages: Sequence[Any]
    """Each one a mapping (or a struct) with `role` and `content`."""
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of the next reply."""
    continue_final_message: bool = False
    """Whether the prompt ends inside the last message, so that the model continues it."""
    chat_template: str | None = None
    """The name of one of the model's templates, or a template; None: the model's default."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Further variables of the template."""
    content_format: ContentFormat | None = None
    """None: found by `detect_content_format`."""
    image_placeholder: str | None = None
    """What stands for an image in texts; None: the model takes none, or the chat has none."""
    no_images: str = ""
    """Why the model takes no images, for errors."""


@dataclass(frozen=True, slots=True)
class RenderJob:
    """All that a rendering depends on; the child keeps no state between two jobs."""

    chat: ChatInput
    template_name: str
    """For error messages."""
    template: str
    special_tokens: Mapping[str, str]
    """Variables of the template, such as `bos_token`."""
    max_seconds: float = DEFAULT_SECONDS
    """Maximum processor time, in seconds."""


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
    for name in ("image_url", "image_pil", "image", "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if value is not None:
            return value
    raise RequestError(f"{where} must have the URL of an image", parameter="messages")
