"""`Conversation`: messages and tools, as chat templates read them, of whatever API; `ToolUse`: the
tools that the reply may call, and whether it has to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.chat.job import VARIABLES
from quire.errors import RequestError, quoted

if TYPE_CHECKING:
    from quire.parsers.call_rules import CallRules


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

    @property
    def texts(self) -> list[str]:
        """The texts of its content, part by part."""
        if isinstance(self.content, str):
            return [self.content]
        return [part if isinstance(part, str) else part.words for part in self.content or ()]


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


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the reply calls tools, and which."""

    mode: Literal["auto", "none", "required"] = "auto"
    only: Sequence[str] | None = None
    """Names of the tools that may be called; None: all of them."""
    is_named: bool = False
    """The request names the one tool to call."""

    @classmethod
    def of_one(cls, name: str) -> ToolChoice:
        """The reply calls this tool."""
        return cls("required", [name], is_named=True)


def _no_rules() -> CallRules:
    from quire.parsers.call_rules import CallRules  # its chain of imports is long

    return CallRules((), "none")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the reply may or must call."""

    rules: CallRules = field(default_factory=_no_rules)
    is_named: bool = False
    """The request names the one tool to call. Then `finish_reason` is `stop`, as in OpenAI's
    API."""
    is_legacy: bool = False
    """The request uses `functions`: the reply has a `function_call`."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The JSON schema of the arguments of each tool that may be called."""

    @property
    def is_searched(self) -> bool:
        """Whether the reply is searched for calls."""
        return self.rules.choice != "none"


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice,
    *,
    is_parallel: bool = True,
    place: str = "tools[{}].function",
) -> ToolUse:
    """`is_parallel`: a reply may have several calls. `place`: path of a tool in the request, with
    its index. Raises RequestError for what is invalid, or does not fit together."""
    if choice.mode not in ("auto", "none", "required"):
        raise RequestError(
            f"tool_choice.allowed_tools.mode must be auto or required, got {quoted(choice.mode)}",
            parameter="tool_choice",
        )
    if not tools:
        if choice.mode == "required":
            raise RequestError(_NO_TOOLS, parameter="tool_choice")
        return ToolUse()
    from quire.parsers.call_rules import rules_of

    rules = rules_of(
        [tool.function for tool in tools],
        choice.mode,
        choice.only,
        is_parallel=is_parallel and not choice.is_named,
        place=place,
    )
    schemas = {tool.name: tool.readable for tool in rules.allowed}
    return ToolUse(rules, choice.is_named, schemas=schemas)


_NO_TOOLS = "When using `tool_choice`, `tools` must be set."


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The messages, tools and variables that a chat template shows to a model."""

    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    """The tools that the template shows."""
    tool_use: ToolUse = field(default_factory=ToolUse)
    """The tools that the reply may call."""
    forbids_calls: bool = False
    """The reply must not call the tools that are shown."""
    documents: list[dict[str, str]] | None = None
    add_generation_prompt: bool = True
    """The prompt ends with the beginning of the reply."""
    continue_final_message: bool = False
    """The prompt ends inside the last message, which the reply goes on with."""
    add_special_tokens: bool = False
    """The model's start token comes first. Most templates write it themselves."""
    variables: dict[str, Any] | None = None
    """Further variables of the chat template."""
    effort: str | None = None
    """The reasoning effort, which the template is given."""
    image_options: dict[str, Any] | None = None
    """How images are prepared."""
    most_tokens: int | None = None
    """Most tokens of the prompt that are kept; -1: what leaves room for one more; None: all."""
    cut_side: Literal["left", "right"] | None = None
    """The end of a longer prompt that is cut off."""
    earlier_token_ids: Sequence[int] = ()
    """Tokens before those of the messages."""

    @classmethod
    def of(cls, messages: list[ChatMessage], body: Any, **own: Any) -> Conversation:
        """By the fields of a body, as far as it has them; `own`: options that it has elsewhere.
        Raises RequestError for a template."""
        if getattr(body, "chat_template", None) is not None:
            raise RequestError(
                "chat_template is refused: this server trusts no template from a request; "
                "give it one with --chat-template",
                parameter="chat_template",
            )
        read: dict[str, Any] = {
            "documents": getattr(body, "documents", None),
            "add_generation_prompt": getattr(body, "add_generation_prompt", None) is not False,
            "continue_final_message": getattr(body, "continue_final_message", None) is True,
            "add_special_tokens": getattr(body, "add_special_tokens", None) is True,
            "variables": getattr(body, VARIABLES, None),
            "effort": getattr(body, "reasoning_effort", None),
            "image_options": getattr(body, "mm_processor_kwargs", None),
            "most_tokens": getattr(body, "truncate_prompt_tokens", None),
            "cut_side": getattr(body, "truncation_side", None),
        }
        return cls(messages=messages, **{**read, **own})


def thinking_variables(effort: str) -> dict[str, Any]:
    """Variables for templates that know `enable_thinking` instead of an effort."""
    return {"enable_thinking": effort != "none"}
