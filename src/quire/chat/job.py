"""The inputs and limits of a rendering: `ChatInput` from the caller, `RenderJob` for the child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
