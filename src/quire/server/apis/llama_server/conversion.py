"""Requests in llama-server's form as the completion requests that ask for the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.errors import RequestError
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.llama_server.schema import LlamaFields
from quire.server.generation.request_fields import SamplerFields

_SAME = (*SamplerFields.__struct_fields__, "model", "stream", "stop", "ignore_eos")
"""Fields with the names and meanings of a completion's."""
_NEUTRAL = {
    "n_probs": 0, "typical_p": 1.0, "mirostat": 0, "dynatemp_range": 0.0, "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
}  # fmt: skip
"""Fields of what this server does not do, with the values that switch it off."""


def completion_request(asked: LlamaFields, prompt: str | Sequence[int]) -> CompletionRequest:
    """The completion request. Raises RequestError for a field that asks for something else."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(asked, name)
        if value is not None and value != neutral:
            hint = "; /v1/completions returns log-probabilities" if name == "n_probs" else ""
            raise RequestError(
                f"{name} must be {neutral}: this is not supported{hint}",
                parameter=name,
                value=value,
            )
    fields: dict[str, Any] = {name: getattr(asked, name) for name in _SAME}
    fields |= {
        "max_tokens": _max_tokens(asked.n_predict),
        "seed": None if asked.seed is None or asked.seed < 0 else asked.seed,
        "logit_bias": _bias(asked.logit_bias),
        "structured_outputs": _constraint(asked),
    }
    if asked.repeat_penalty is not None:
        fields["repetition_penalty"] = asked.repeat_penalty
    if asked.top_k is not None and asked.top_k <= 0:
        fields["top_k"] = -1  # all tokens
    return CompletionRequest(prompt=prompt if isinstance(prompt, str) else [*prompt], **fields)


def _max_tokens(n_predict: int | None) -> int | None:
    if n_predict is None or n_predict < 0:
        return None
    if n_predict == 0:
        raise RequestError(
            "n_predict must be a positive number of tokens, or -1", parameter="n_predict", value=0
        )
    return n_predict


def _bias(given: list[tuple[int, float]] | dict[str, float] | None) -> dict[str, float] | None:
    if not given:
        return None
    if isinstance(given, dict):
        return given
    return {str(token_id): value for token_id, value in given}


def _constraint(asked: LlamaFields) -> dict[str, Any] | None:
    if asked.grammar and asked.json_schema is not None:
        raise RequestError("give either grammar or json_schema", parameter="grammar")
    if asked.grammar:
        return {"grammar": asked.grammar}
    return None if asked.json_schema is None else {"json": asked.json_schema}
