"""The inputs and limits of a rendering: `ChatInput` from the caller, `RenderJob` for the child; and
the images, videos and sounds of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.errors import RequestError, quoted
from quire.images.modality import MODALITIES
from quire.units import MiB

ContentFormat = Literal["string", "openai"]
"""Whether a template wants the content of a message as text, or as a list of parts."""

DEFAULT_SECONDS = 5.0
"""Default limit of a rendering's processor time."""
TOO_LONG = "it takes more than {:g} s of processor time"
VARIABLES = "chat_template_kwargs"
"""Name of the further variables of a template in all APIs."""
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
    variables: Mapping[str, Any] | None = None
    """Further variables of the template; requests call them `VARIABLES`."""
    content_format: ContentFormat | None = None
    """None: found by `detect_content_format`."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """Placeholders of an image, a video and audio in texts, by these names. Without one, the model
    takes none, or the chat has none."""
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


@dataclass(frozen=True, slots=True)
class Given:
    """A video or a sound of a request."""

    kind: str
    """A name of `MODALITIES`."""
    source: Any
    """A URL, the bytes of a file, or what else `multi_modal_data` may have for it."""


@dataclass(frozen=True, slots=True)
class GivenEmbeds:
    """The rows of an image that the caller has encoded."""

    value: Any
    """A tensor, its base64, or a dict with one as `image_embeds` and an `image_grid_thw`."""


@dataclass(slots=True)
class TakenImages:
    """A conversation without its images, videos and sounds, and what they were, in order."""

    messages: list[Any]
    images: list[Any] = field(default_factory=list)
    """URLs, in offline use Pillow images, `Given` and `GivenEmbeds`."""


def kind_of_part(part: Any) -> str | None:
    """Whether a part of a message's content is an image, a video or audio; None: none of them."""
    if not isinstance(part, Mapping):
        return None
    given = part.get("type")
    for kind, modality in MODALITIES.items():
        types = modality.parts
        if given in types or (given is None and any(one in part for one in types)):
            return kind
    return None


def has_images(messages: Any) -> bool:
    """Whether any message has an image, a video or audio."""
    if not isinstance(messages, Sequence):
        return False
    contents = [one.get("content") for one in messages if isinstance(one, Mapping)]
    return any(isinstance(one, list | tuple) and any(map(kind_of_part, one)) for one in contents)


def take_images(messages: Sequence[Any], hide: Callable[[Any], Any]) -> TakenImages:
    """Takes the images, videos and sounds of all messages. `hide` replaces what looks like a
    placeholder in texts. Raises RequestError for a part that holds none."""
    taken = TakenImages([])
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            taken.messages.append(hide(message))
            continue
        parts: list[Any] = []
        for place, part in enumerate(content):
            if (kind := kind_of_part(part)) is not None:
                taken.images.append(
                    given_of_part(kind, part, f"messages[{index}].content[{place}]")
                )
                parts.append({"type": kind})
            else:
                parts.append(hide(part))
        others = hide({name: value for name, value in message.items() if name != "content"})
        taken.messages.append({**others, "content": parts})
    return taken


def given_of_part(kind: str, part: Mapping[str, Any], where: str) -> Any:
    """The image, video or sound of a part. Raises RequestError for a part without it."""
    if kind == "image" and (embeds := part.get("image_embeds")) is not None:
        return GivenEmbeds(embeds)
    modality = MODALITIES[kind]
    for name in (*modality.parts, "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            has_data = name == modality.base64_part and value.get("data") is not None
            key = "data" if has_data else "url"
            value = value.get(key)
            if not isinstance(value, str | None):
                raise RequestError(
                    f"{where}.{name}.{key} must be a string, got {quoted(value)}",
                    parameter="messages",
                )
            value = f"data:{kind};base64,{value}" if has_data else value
        if value is not None:
            return value if kind == "image" else Given(kind, value)
    raise RequestError(f"{where} must have {modality.wanted}", parameter="messages")
