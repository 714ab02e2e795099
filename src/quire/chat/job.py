"""The records that a rendering needs, as the caller gives them and as they cross to the child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.units import MiB

ContentFormat = Literal["string", "openai"]
"""Whether a template wants the content of a message as text, or as a list of parts."""

DEFAULT_SECONDS = 5.0
"""Processor time that a rendering may take, if nobody says otherwise."""
TOO_LONG = "it takes more than {:g} s of processor time"
MAX_NESTING = 64
"""Lists and dicts inside each other, in what a template is given."""
MAX_STEPS = 1_000_000
"""Rounds of loops, calls, filters, operators and printed values in one rendering."""
MAX_TEXT = 1 << 24
"""Characters of the prompt, and of any one value as text."""
MAX_MEMORY_BYTES = 512 * MiB
"""Of the process that renders."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation, and how it is to be rendered."""

    messages: Sequence[Any]
    """Each one a mapping (or a struct) with `role` and `content`."""
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    add_generation_prompt: bool = True
    """Ends with the begin of the next answer."""
    continue_final_message: bool = False
    """Ends inside the last message, so that the model goes on with it."""
    chat_template: str | None = None
    """The name of one of the model's templates, or a template; None: the model's own choice."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Further variables of the template."""
    content_format: ContentFormat | None = None
    """None: as the template wants it."""


@dataclass(frozen=True, slots=True)
class RenderJob:
    """All that a rendering depends on; the child holds nothing between two of them."""

    chat: ChatInput
    template_name: str
    """For messages."""
    template: str
    special_tokens: Mapping[str, str]
    """Variables of the template, such as `bos_token`."""
    max_seconds: float = DEFAULT_SECONDS
    """Of processor time."""
