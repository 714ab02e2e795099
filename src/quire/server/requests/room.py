"""Checks that prompt and reply fit into the context. Messages are vLLM's, on which clients match.

A reply's `max_tokens` may be more than what the prompt leaves: the reply ends with the context. A
prompt is cut only where the request says so.
"""

from __future__ import annotations

import copy

from quire.errors import RequestError
from quire.frontend.too_long import prompt_too_long
from quire.params import SamplingParams


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
