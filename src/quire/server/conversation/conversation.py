"""`Conversation`: messages and tools, and how a chat template shows them, of whatever API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.errors import RequestError
from quire.server.conversation.messages import ChatMessage, Tool
from quire.server.conversation.tools import ToolUse


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
            "variables": getattr(body, "chat_template_kwargs", None),
            "effort": getattr(body, "reasoning_effort", None),
            "image_options": getattr(body, "mm_processor_kwargs", None),
            "most_tokens": getattr(body, "truncate_prompt_tokens", None),
            "cut_side": getattr(body, "truncation_side", None),
        }
        return cls(messages=messages, **{**read, **own})


def thinking_variables(effort: str) -> dict[str, Any]:
    """Variables for templates that know `enable_thinking` instead of an effort."""
    return {"enable_thinking": effort != "none"}
