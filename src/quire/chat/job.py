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
    video_placeholder: str | None = None
    """The same for a video."""
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


_IMAGE_TYPES = ("image_url", "input_image", "image_pil", "image", "image_embeds")
_VIDEO_TYPES = ("video_url", "video")
IMAGE_PART, VIDEO_PART = {"type": "image"}, {"type": "video"}
"""An image and a video in the form that templates get."""


@dataclass(frozen=True, slots=True)
class GivenVideo:
    """A video of a request."""

    source: Any
    """A URL, the bytes of an animated file, or frames."""


@dataclass(frozen=True, slots=True)
class GivenEmbeds:
    """The rows of an image that the caller has encoded."""

    value: Any
    """A tensor, its base64, or a dict with one as `image_embeds` and an `image_grid_thw`."""


@dataclass(slots=True)
class TakenImages:
    """A conversation without its images and videos, and what they were, in order."""

    messages: list[Any]
    images: list[Any] = field(default_factory=list)
    """URLs, in offline use Pillow images, `GivenVideo` and `GivenEmbeds`."""


def is_image(part: Any) -> bool:
    """Whether a part of a message's content is an image or a video."""
    return isinstance(part, Mapping) and _is_of(part, _IMAGE_TYPES + _VIDEO_TYPES)


def _is_of(part: Mapping[str, Any], types: Sequence[str]) -> bool:
    kind = part.get("type")
    return kind in types or (kind is None and any(one in part for one in types))


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
                is_video = _is_of(part, _VIDEO_TYPES)
                taken.images.append(
                    GivenVideo(_source(part, where, _VIDEO_TYPES))
                    if is_video
                    else _image_source(part, where)
                )
                parts.append(dict(VIDEO_PART if is_video else IMAGE_PART))
            else:
                parts.append(hide(part))
        others = hide({name: value for name, value in message.items() if name != "content"})
        taken.messages.append({**others, "content": parts})
    return taken


def _image_source(part: Mapping[str, Any], where: str) -> Any:
    if (embeds := part.get("image_embeds")) is not None:
        return GivenEmbeds(embeds)
    return _source(part, where, ("image_url", "image_pil", "image"))


def _source(part: Mapping[str, Any], where: str, names: Sequence[str]) -> Any:
    for name in (*names, "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if value is not None:
            return value
    what = "a video" if names == _VIDEO_TYPES else "an image"
    raise RequestError(f"{where} must have the URL of {what}", parameter="messages")
