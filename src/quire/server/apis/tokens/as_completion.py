"""Reads a request for tokens as what it is to the engine: a completion of one prompt of token ids,
whose fields do not come from the model's defaults. Called by the route.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.config import ModelConfig
from quire.config.checkpoint.model_files import MODEL_SAMPLING_KEYS
from quire.errors import RequestError, quoted
from quire.params import NOT_YET, SamplingParams
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.tokens.schema import TokenSampling, TokensRequest

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "features": (None, {}),
    "content_parts": (None, []),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
}
"""Unsupported fields with their neutral values."""
_SET_BY_SERVER = {"output_kind", "skip_clone", "flat_logprobs", "detokenize"}
_RENAMED = {"extra_args": "vllm_xargs"}
_COMPLETION_FIELDS = {field.name for field in msgspec.structs.fields(CompletionRequest)}
_DEFAULTS = SamplingParams()


def as_completion(request: TokensRequest, model: ModelConfig) -> CompletionRequest:
    """The completion that a request for tokens asks for. Raises RequestError for what is not
    supported, or contradicts itself; values are checked with the completion's."""
    _refuse(request)
    asked = request.sampling_params
    values = {
        _RENAMED.get(name, name): value
        for name, value in msgspec.structs.asdict(asked).items()
        if value is not None
    }
    for name in MODEL_SAMPLING_KEYS:  # a completion without one would take the model's
        values.setdefault(name, getattr(_DEFAULTS, name))
    if asked.max_tokens is None:
        own = model.default_sampling_params.get("max_tokens")
        values["max_tokens"] = model.max_model_len if own is None else own
    if asked.logprob_token_ids and asked.logprobs is None:
        values["logprobs"] = len(asked.logprob_token_ids)
    known = {name: value for name, value in values.items() if name in _COMPLETION_FIELDS}
    return CompletionRequest(
        prompt=request.token_ids,  # type: ignore[arg-type]
        model=request.model,
        request_id=request.request_id,
        stream=request.stream,
        stream_options=request.stream_options,
        cache_salt=request.cache_salt,
        priority=request.priority,
        return_token_ids=request.return_token_ids,
        **known,
    )


def fields_without_effect(request: TokensRequest) -> list[str]:
    """The accepted fields whose values ask for something that this server does not do."""
    names = []
    if request.reasoning_parser_kwargs:
        names.append("reasoning_parser_kwargs")
    if request.sampling_params.skip_reading_prefix_cache:
        names.append("sampling_params.skip_reading_prefix_cache")
    return names


def _refuse(request: TokensRequest) -> None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value not in neutral:
            raise _refusal(name, value, neutral[0])
    asked = request.sampling_params
    for name, neutral in NOT_YET.items():
        value = getattr(asked, name)
        if value is not None and value not in neutral:
            raise _refusal(name, value, neutral[0])
    if asked.detokenize is False:
        _refuse_text(request, asked)


def _refuse_text(request: TokensRequest, asked: TokenSampling) -> None:
    """Raises RequestError if the request disables detokenization and uses a feature that needs
    it."""
    if request.output_mode == "text":
        raise RequestError(
            "output_mode='text' requires sampling_params.detokenize to be true; leave it out.",
            parameter="detokenize",
        )
    if asked.stop:
        raise RequestError(
            "stop strings are only supported when detokenize is True; leave it out, or use "
            "stop_token_ids.",
            parameter="stop",
        )


def _refusal(name: str, value: Any, neutral: object) -> RequestError:
    return RequestError(
        f"{name} is not supported, got {quoted(value):.100}; leave it at {neutral!r}.",
        parameter=name,
    )
