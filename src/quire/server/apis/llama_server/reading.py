"""Reads llama-server's bodies into requests for text."""

from __future__ import annotations

from typing import Any

from quire.errors import RequestError
from quire.server.apis.llama_server.schema import LlamaFields
from quire.server.requests.fields import SamplerFields
from quire.server.requests.reading import given
from quire.server.requests.request import ReplyOptions, Source, TextRequest

_SAME = (*SamplerFields.__struct_fields__, "stop", "ignore_eos")
"""Fields with the names and meanings of `SamplingParams`."""
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64}
"""llama-server's own, of `common_params_sampling`."""
_NEUTRAL = {
    "n_probs": 0, "typical_p": 1.0, "mirostat": 0, "dynatemp_range": 0.0, "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
}  # fmt: skip
"""Fields of what this server does not do, with the values that switch it off."""


def read_llama(asked: LlamaFields, prompt: Source) -> TextRequest[Source]:
    """Raises RequestError for a field that asks for something else than is done here."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(asked, name)
        if value is not None and value != neutral:
            hint = "; /v1/completions returns log-probabilities" if name == "n_probs" else ""
            raise RequestError(
                f"{name} must be {neutral}: this is not supported{hint}",
                parameter=name,
                value=value,
            )
    sampling: dict[str, Any] = given(asked, _SAME)
    if asked.seed is not None and asked.seed < 0:
        del sampling["seed"]
    if (bias := _bias(asked.logit_bias)) is not None:
        sampling["logit_bias"] = bias
    else:
        sampling.pop("logit_bias", None)
    if asked.repeat_penalty is not None:
        sampling["repetition_penalty"] = asked.repeat_penalty
    if asked.top_k is not None and asked.top_k <= 0:
        sampling["top_k"] = -1  # all tokens
    return TextRequest.of(
        asked,
        prompt,
        sampling=sampling,
        defaults=DEFAULTS,
        max_tokens=_max_tokens(asked.n_predict),
        constraint=_constraint(asked),
        reply=ReplyOptions(stream=asked.stream is True, repeats_prompt=True),
        names={"suffix": "input_suffix"},
    )


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
