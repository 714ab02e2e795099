"""The types of a prompt: text, token ids, or a dict of either. Names are vLLM's.

Read by the InputProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from quire.params import SamplingParams


class _PromptOptions(TypedDict, total=False):
    cache_salt: str
    """Requests share cached prefixes only under an equal salt."""
    prediction: str | list[int]
    """The text that is expected as the reply, or its token ids. It only makes the reply faster."""


class _TokensOptions(_PromptOptions, total=False):
    prompt: str
    """The text of the tokens, for outputs."""
    token_type_ids: list[int]
    """The segment of each token, for encoders of pairs: 0, or 1 for the second text."""


class TextPrompt(_PromptOptions):
    """A text, to be tokenised."""

    prompt: str


class TokensPrompt(_TokensOptions):
    """Token ids, used as they are."""

    prompt_token_ids: list[int]


PromptType = str | list[int] | TextPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class StreamingInput:
    """A piece of a prompt that an async generator gives to `AsyncLLM.generate`."""

    prompt: PromptType
    sampling_params: SamplingParams | None = None
    """Parameters of the answer to this piece; None: those of the request."""
