"""`ReplyOptions`: what the reply to a request for text has, whatever API it came by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True, kw_only=True)
class ReplyOptions:
    """Contents of a reply. An API that has no field for one of them leaves its default."""

    stream: bool = False
    n: int = 1
    """Choices for each prompt."""
    num_top: int | None = None
    """Log-probabilities of the best tokens at each position; None: no log-probabilities."""
    has_prompt_logprobs: bool = False
    """The request asks for log-probabilities of the prompt, besides those of an echo."""
    echo: bool = False
    """The reply begins with the prompt or, in a chat, with the last message."""
    is_echo_alone: bool = False
    """The reply is the prompt alone. As in vLLM, one token is generated and counted."""
    repeats_prompt: bool = False
    """Log-probabilities of the prompt are in each choice."""
    has_token_ids: bool = False
    has_prompt_text: bool = False
    include_usage: bool = False
    """A stream ends with the usage."""
    continuous_usage: bool = False
    """Each event has the usage so far."""
    has_metrics: bool = False
    tokens_as_ids: bool | None = None
    """Tokens of log-probabilities are written as their ids; None: as the server's option says."""
    shows_reasoning: bool = True
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    """Field of a message that holds the reasoning."""
    reasoning_is_content: bool = False
    """The reasoning is part of the content, between its tags."""
