"""Converts the fields of a request with `use_beam_search`, and refuses those that it cannot have.

A beam search compares sequences by the model's own log-probabilities. A field that would change
these, or end a sequence in another way, is refused by name; one that controls random sampling
has no effect, and the reply's headers name it.
"""

from __future__ import annotations

import msgspec

from quire.beam_search import BeamSearchParams
from quire.errors import RequestError, quoted
from quire.params import SamplingParams
from quire.server.generation.request_fields import GenerationFields, SamplerFields
from quire.server.generation.sampling import check_bounds, sampling_params
from quire.server.served_model import ServedModel

_REFUSED: dict[str, tuple[object, ...]] = {
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "frequency_penalty": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "logprob_token_ids": (None, []),
    "prompt_logprobs": (None,),
    "repetition_detection": (None,),
    "thinking_token_budget": (None, -1),
    "vllm_xargs": (None, {}),
}
"""Fields with their neutral values; the error message suggests the first."""

_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "seed": (None,),
}

# A field of the sampler that is named in neither is refused where it is given.
_REFUSED |= {
    field.name: (None,)
    for field in msgspec.structs.fields(SamplerFields)
    if field.name not in {*_REFUSED, *_WITHOUT_EFFECT, "temperature"}
}


def refuse_with_beams(request: GenerationFields) -> None:
    """Raises RequestError for fields that do not work with `use_beam_search`, or only with it."""
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1.0):
            raise RequestError(
                f"length_penalty is for beam search, got {quoted(request.length_penalty)}; leave "
                "it out, or set use_beam_search to true.",
                parameter="length_penalty",
                value=request.length_penalty,
            )
        return
    if not request.is_chat and request.stream:
        raise RequestError(
            "Streaming is not currently supported with beam search", parameter="stream"
        )
    if not request.is_chat and request.echo and request.logprobs is not None:
        raise RequestError(
            "`echo` with `logprobs` is not supported with beam search because beam search does "
            "not compute prompt logprobs.",
            parameter="echo",
        )
    for name, neutral in _REFUSED.items():
        value = getattr(request, name)
        if value not in neutral:
            raise RequestError(
                f"`{name}` is not supported with beam search, got {quoted(value):.100}; leave it "
                f"at {neutral[0]!r}.",
                parameter=name,
                value=value,
            )


def fields_without_beams(request: GenerationFields) -> list[str]:
    """The fields of a request with `use_beam_search` that change nothing."""
    if not request.use_beam_search:
        return []
    return [
        name for name, neutral in _WITHOUT_EFFECT.items() if getattr(request, name) not in neutral
    ]


def beam_sampling_params(model: ServedModel, request: GenerationFields) -> SamplingParams:
    """What the request would ask for without beams, so that all its fields are checked; `n` is the
    width. Raises RequestError."""
    check_bounds(request, model.args)
    width = 1 if request.n is None else request.n
    if width < 1:
        raise RequestError(f"n must be at least 1, got {width}.", parameter="n", value=width)
    params = sampling_params(model, msgspec.structs.replace(request, n=1, best_of=None))
    params.n = width
    return params


def beam_search_params(
    request: GenerationFields, params: SamplingParams, max_model_len: int
) -> BeamSearchParams:
    """Converts the result of `beam_sampling_params`. Raises RequestError."""
    penalty = request.length_penalty
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=max_model_len if params.max_tokens is None else params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        length_penalty=1.0 if penalty is None else penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        structured_outputs=params.structured_outputs,
        skip_special_tokens=params.skip_special_tokens,
        stop=params.stop,
        watermarking=params.watermarking,
    )
