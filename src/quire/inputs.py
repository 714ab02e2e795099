"""The types of a prompt: text, token ids, or a dict of either. Names are vLLM's.

Read by the InputProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from quire.params import SamplingParams


class _PromptOptions(TypedDict, total=False):
    cache_salt: str
    """Requests share cached prefixes only under an equal salt."""
    multi_modal_data: dict[str, Any]
    """`{"image": picture}`, or a list of pictures: Pillow images, bytes of files, URLs."""
    multi_modal_uuids: dict[str, Any]
    """Accepted: the bytes of a picture identify it."""
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


class _EmbedsOptions(_PromptOptions, total=False):
    prompt: str
    """The text of the embeddings, for outputs."""
    prompt_token_ids: list[int]
    """Token ids, for a prompt of tokens and embeddings; those of given positions have no effect."""
    prompt_is_token_ids: list[bool]
    """For each position whether its token id is used; otherwise its row of `prompt_embeds` is."""


class EmbedsPrompt(_EmbedsOptions):
    """Rows that take the place of token embeddings; the engine needs `enable_prompt_embeds`."""

    prompt_embeds: Any
    """A NumPy array or torch tensor [tokens, hidden_size]."""


class ExplicitEncoderDecoderPrompt(TypedDict):
    """A prompt of a model with an encoder, such as Whisper, in two parts."""

    encoder_prompt: dict[str, Any]
    """With `multi_modal_data`, and without a text."""
    decoder_prompt: str | list[int] | TextPrompt | TokensPrompt


PromptType = (
    str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | ExplicitEncoderDecoderPrompt
)


@dataclass(frozen=True, slots=True)
class StreamingInput:
    """A piece of a prompt that an async generator gives to `AsyncLLM.generate`."""

    prompt: PromptType
    sampling_params: SamplingParams | None = None
    """Parameters of the answer to this piece; None: those of the request."""
