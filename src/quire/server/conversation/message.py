"""The messages of a conversation and the tools in it, as chat templates read them: their fields, in
OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A piece of a message. The types `text`, `input_text`, `output_text`, `refusal`, `thinking`,
    `image_url`, `input_image`, `image_embeds`, `video_url`, `audio_url`, `input_audio` and
    `prompt_embeds` work."""

    type: str
    image_url: str | dict[str, Any] | None = None
    """The URL of an image, or an object with it as `url`."""
    image_embeds: str | dict[str, Any] | None = None
    """Rows of an encoded image, as base64 of a file with a tensor, or an object with them and an
    `image_grid_thw`."""
    video_url: str | dict[str, Any] | None = None
    """The URL of a video's frames or of an animated file, or an object with it as `url`."""
    audio_url: str | dict[str, Any] | None = None
    """The URL of a sound, or an object with it as `url`."""
    input_audio: dict[str, Any] | None = None
    """A sound: base64 of a file as `data`. Its `format` has no effect, because the first bytes of
    the file show the type."""
    detail: str | None = None
    """Accepted; the model decides how an image is divided."""
    uuid: str | None = None
    """Accepted; the bytes of a file identify it."""
    data: str | None = None
    """Rows in place of token embeddings, as base64 of a file with a tensor."""
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    closed: bool | None = None
    """Whether the thinking is complete; it has no effect."""

    @property
    def words(self) -> str:
        """The part's text; empty if it has none."""
        if self.type in ("refusal", "thinking"):
            return getattr(self, self.type) or ""
        return self.text or ""


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation, handed to the model's chat template."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """An older name of `reasoning`."""
    tools: list[dict[str, Any]] | None = None
    """The tools of a developer's message, for templates that read them."""
    task: str | None = None
    """A marker for templates that read it."""


class FunctionDefinition(
    msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool offered to the model."""

    type: Literal["function"] = "function"
    function: FunctionDefinition

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For programs that use the class as a type of pydantic, as they can use vLLM's."""
        del source, handler
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda given: msgspec.convert(given, cls)
        )
