"""`Conversation`: the messages and tools of a prompt, of whatever API; `ToolUse`: the
tools that the reply may call, and whether it has to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quire.chat.job import VARIABLES
from quire.errors import RequestError, quoted
from quire.server.conversation.message import ChatMessage, Tool

if TYPE_CHECKING:
    from quire.parsers.call_rules import CallRules


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
