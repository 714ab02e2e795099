"""Checks that prompt and reply fit into the context. Messages are vLLM's, on which clients match.

A reply's `max_tokens` may be more than what the prompt leaves: the reply ends with the context. A
prompt is cut only where the request says so.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

from quire.errors import RequestError
from quire.frontend.too_long import prompt_too_long
from quire.params import SamplingParams
from quire.server.schema.common import GenerationFields
from quire.tokenizer.tokenizer import SpecialFrame


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, and which."""

    num_tokens: int
    side: Literal["left", "right"] | None
    """The end that is cut off. None: the left one, behind the special tokens around a text."""

    @classmethod
    def of(cls, request: GenerationFields, max_model_len: int) -> Truncation | None:
        """What a request asks for; None: nothing is cut. Raises RequestError."""
        count = request.truncate_prompt_tokens
        if count is None:
            return None
        if count > max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens={count} cannot be greater than max_model_len = "
                f"{max_model_len}. Please request a smaller truncation size.",
                parameter="truncate_prompt_tokens",
                value=count,
            )
        return cls(max_model_len - 1 if count == -1 else count, request.truncation_side)

    def kept(self, token_ids: list[int], frame: SpecialFrame | None = None) -> list[int]:
        """What is kept of a prompt; `frame`: the special tokens that it begins and ends with."""
        if len(token_ids) <= self.num_tokens:
            return token_ids
        before = after = 0
        if frame is not None and self.side is None:
            before, after = len(frame.before), len(frame.after)
        room = max(0, self.num_tokens - before - after)
        inner = token_ids[before : len(token_ids) - after]
        inner = inner[:room] if self.side == "right" else inner[len(inner) - room :]
        kept = [*token_ids[:before], *inner, *token_ids[len(token_ids) - after :]]
        return kept[: self.num_tokens]


def check_max_tokens(name: str, max_tokens: int | None, max_model_len: int) -> None:
    """Raises RequestError if the reply alone is longer than the context; `name` is its field."""
    if max_tokens is not None and max_tokens > max_model_len:
        raise RequestError(
            f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            parameter=name,
            value=max_tokens,
        )


def params_in_room(
    params: SamplingParams, num_prompt_tokens: int, max_model_len: int
) -> SamplingParams:
    """The parameters for a prompt of this length: with what is left of the context as `max_tokens`,
    if that is less. Raises RequestError if nothing is left.

    The engine validates them again, since `min_tokens` may be more than what is left.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise prompt_too_long(num_prompt_tokens, max_model_len)
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    fitted = copy.copy(params)
    fitted.max_tokens = room
    return fitted
