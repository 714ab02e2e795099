"""Reads bodies of `/inference/v1/generate` into requests for text."""

from __future__ import annotations

from quire.config import ModelConfig
from quire.config.checkpoint.model_files import MODEL_SAMPLING_KEYS
from quire.errors import RequestError
from quire.param_checks import checked_json
from quire.params import NOT_YET, SamplingParams
from quire.server.apis.tokens.schema import TokenSampling, TokensRequest
from quire.server.requests.fields import TRANSFERS
from quire.server.requests.limits import refuse_other_values
from quire.server.requests.reading import (
    SAME_NAME,
    given,
    read_logprobs,
    read_prompt_logprobs,
    read_stream_options,
    without_nulls,
)
from quire.server.requests.request import ReplyOptions, TextRequest
from quire.server.requests.texts import TextPrompts

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "features": (None, {}),
    "content_parts": (None, []),
    **dict.fromkeys(TRANSFERS, (None, {})),
}
"""Unsupported fields with their neutral values."""
_DEFAULTS = SamplingParams()


def read_tokens(request: TokensRequest, model: ModelConfig) -> TextRequest[TextPrompts]:
    """Raises RequestError for what is not supported, or contradicts itself."""
    _refuse(request)
    body = request.sampling_params
    sampling = given(body, SAME_NAME & {*body.__struct_fields__})
    for name in MODEL_SAMPLING_KEYS:  # one that is absent would be the model's
        sampling.setdefault(name, getattr(_DEFAULTS, name))
    if (extra := checked_json(body.extra_args, "vllm_xargs")) is not None:
        sampling["extra_args"] = extra
    reply = ReplyOptions(
        stream=request.stream is True,
        n=body.n or 1,
        has_prompt_logprobs=body.prompt_logprobs is not None,
        has_token_ids=request.return_token_ids is True,
        repeats_prompt=True,
    )
    read_stream_options(reply, request.stream_options)
    asked = TextRequest.of(
        request,
        TextPrompts(request.token_ids),
        sampling=sampling,
        max_tokens=body.max_tokens,
        constraint=without_nulls(body.structured_outputs),
        reply=reply,
    )
    if asked.max_tokens is None:
        own = model.default_sampling_params.get("max_tokens")
        asked.max_tokens = model.max_model_len if own is None else own
    num_top = body.logprobs
    if body.logprob_token_ids and num_top is None:
        num_top = len(body.logprob_token_ids)
    read_logprobs(asked, num_top)
    read_prompt_logprobs(asked, body.prompt_logprobs)
    if request.reasoning_parser_kwargs:
        asked.ignored.append("reasoning_parser_kwargs")
    if body.skip_reading_prefix_cache:
        asked.ignored.append("sampling_params.skip_reading_prefix_cache")
    return asked


def _refuse(request: TokensRequest) -> None:
    refuse_other_values(request, _NEUTRAL)
    asked = request.sampling_params
    refuse_other_values(asked, NOT_YET)
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
