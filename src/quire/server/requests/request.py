"""`TextRequest`: a request for text, whatever API it came by.

An API reads its body into one of these. It has the options by Quire's own names, and `names`, which
says where the body has them: so an error about an option names the field that the client sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from quire.errors import RequestError
from quire.structured.params import FIELD, KINDS

if TYPE_CHECKING:
    from quire.config import EngineConfig


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


Source = TypeVar("Source")


@dataclass(slots=True, kw_only=True)
class TextRequest(Generic[Source]):
    """The options of a request, by Quire's names."""

    prompt: Source
    """The source of the prompts: a conversation or several, texts, a text with a gap, a sound."""
    model: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Values of fields of `SamplingParams`; those that the body does not give are absent."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of the same fields that the API has where neither the body nor the model gives one."""
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    """Meaning of an absent `max_tokens`; None: whatever the context has room for."""
    num_samples: int | None = None
    """Samples of which the best are shown; None: all are."""
    constraint: dict[str, Any] | None = None
    """Fields of `StructuredOutputsParams`; None: any text is allowed."""
    has_beams: bool = False
    length_penalty: float = 1.0
    """For beam search."""
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    predicted: str | None = None
    """The expected reply, which makes the reply faster and does not change it."""
    priority: int = 0
    request_id: str | None = None
    salt: str | None = None
    """Requests share cached prefixes only with those of the same salt."""
    names: dict[str, str] = field(default_factory=dict)
    """Fields of the body by the options that they give, where the names differ."""
    ignored: list[str] = field(default_factory=list)
    """Fields of the body that no model here has a use for."""

    @classmethod
    def of(cls, body: Any, prompt: Source, **own: Any) -> TextRequest[Source]:
        """By the fields of a body, as far as it has them; `own`: options that it has elsewhere."""
        penalty = getattr(body, "length_penalty", None)
        read = {
            "model": getattr(body, "model", None),
            "priority": getattr(body, "priority", None) or 0,
            "request_id": getattr(body, "request_id", None),
            "salt": salt_of(body),
            "length_penalty": 1.0 if penalty is None else penalty,
        }
        return cls(prompt=prompt, **{**read, **own})

    def without_effect(self, config: EngineConfig) -> list[str]:
        """The fields of the body that ask for something that this server does not do."""
        names = list(self.ignored)
        if self.priority and config.scheduler.policy != "priority":
            names.append("priority")
        if self.predicted is not None and config.scheduler.speculation is None:
            names.append("prediction")
        return names

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors that name an option name the field of the body that gave it."""
        try:
            yield
        except RequestError as error:
            found = renamed(error, self.names)
            if found is error:
                raise
            raise found from None

    def as_asked(self, error: RequestError) -> RequestError:
        """The error as `named` raises it."""
        return renamed(error, self.names)

    def name_constraint(self, field: str) -> None:
        """`field`: the field of the body that gives the constraint."""
        options = (FIELD, *(f"{FIELD}.{kind}" for kind in KINDS))
        self.names |= dict.fromkeys(options, field)

    def own_name(self, option: str) -> str:
        """The field of the body that gives an option."""
        return self.names.get(option, option)


AnyRequest = TextRequest[Any]


def without_nulls(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields that are not null; None if the object is missing."""
    if fields is None:
        return None
    return {name: value for name, value in fields.items() if value is not None}


def salt_of(body: object) -> str | None:
    """The salt that a body names; None: it names none, or has no field for it."""
    return getattr(body, "cache_salt", None)


_WORDS = frozenset({"prompt", "messages", "input_tokens", "input_text"})
"""Options whose names are words of messages, too: a message keeps them."""
_LAST_STEP = re.compile(r"[.\[][^.\[]*$")


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The error by these names; the same one if its option has the same name in the body."""
    option = error.parameter or ""
    known = option
    while known not in names:
        shorter = _LAST_STEP.sub("", known)
        if shorter == known:
            return error
        known = shorter
    own, message = names[known], str(error)
    if own == option:
        return error
    if known not in _WORDS:
        rest = re.escape(option.removeprefix(known))
        message = re.sub(rf"(?<!\w){re.escape(known)}(?:{rest})?(?!\w)", lambda _: own, message)
    return RequestError(message, parameter=own, value=error.value)
