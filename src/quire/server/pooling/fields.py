"""Fields that requests for vectors, classes and scores share, and the usage in their replies."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quire.config.pooling import PoolingTask
from quire.errors import RequestError
from quire.frontend.inputs.tokenization import Tokenization, Truncation
from quire.protocol.pooling_params import PoolingParams
from quire.server.generation.request_fields import CacheSalt, Count, Int64, RequestIdText, TokenId
from quire.server.served_model import ServedModel

TruncateTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Inputs = str | list[str | TokenId | list[TokenId]]
"""A text, a list of texts, a list of token ids, or a list of such lists."""


class PoolingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all requests have. Names are vLLM's, except `prompt_name`."""

    model: str | None = None
    user: str | None = None
    """Accepted and not used."""
    truncate_prompt_tokens: TruncateTokens | None = None
    """Keep so many tokens of a text; -1: as many as the model takes."""
    truncation_side: Literal["left", "right"] | None = None
    """The end that is cut off; the right one by default."""
    request_id: RequestIdText | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
    add_special_tokens: bool | None = None
    """By default true for texts and false for a conversation."""
    use_activation: bool | None = None
    """Whether vectors have length 1, and scores are probabilities; by default as the model says."""

    def tokenization(self, model: ServedModel) -> Tokenization:
        """How texts become tokens. Raises RequestError."""
        truncation = Truncation.of(
            self.truncate_prompt_tokens,
            self.truncation_side,
            model.limits.max_model_len,
            pools=True,
        )
        return Tokenization(self.add_special_tokens is not False, truncation)

    def params(self, task: PoolingTask | None = None) -> PoolingParams:
        """What the engine is asked for."""
        return PoolingParams(use_activation=self.use_activation, task=task)


class PoolingUsage(msgspec.Struct, kw_only=True):
    """Tokens of a request."""

    prompt_tokens: Count
    total_tokens: Count
    completion_tokens: Count = 0


def as_inputs(name: str, given: Inputs) -> list[str | list[int]]:
    """One entry for each input. Raises RequestError for none, and for different kinds."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError(f"{name} must not be empty", parameter=name)
    if isinstance(given[0], int):
        given = [given]  # type: ignore[list-item]
    kind = type(given[0])
    if any(type(one) is not kind for one in given) or (
        kind is list and not all(isinstance(one, int) for each in given for one in each)  # type: ignore[union-attr]
    ):
        raise RequestError(
            f"{name} must be a string, a list of strings, a list of token ids or a list of such "
            "lists; it holds different kinds",
            parameter=name,
        )
    return given  # type: ignore[return-value]
