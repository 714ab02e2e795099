"""Reads the fields that completions and chats have in common into a `TextRequest`, and parts of
them that other APIs have too: additional arguments, log-probabilities, options of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from quire.errors import RequestError
from quire.frontend.kv_hand_off import FIELD as TRANSFER
from quire.param_checks import checked_json
from quire.params import SamplingParams
from quire.server.requests.beam_fields import read_beam_fields
from quire.server.requests.constraints import CONSTRAINTS, read_constraint
from quire.server.requests.fields import GenerationFields, StreamOptions
from quire.server.requests.limits import refuse_other_values
from quire.server.requests.request import (
    AnyRequest,
    ReplyOptions,
    Source,
    TextRequest,
    without_nulls,
)
from quire.structured.params import OWN_BACKENDS, check_backend

NEUTRAL: dict[str, tuple[object, ...]] = {
    "early_stopping": (None, False),
    "ec_transfer_params": (None, {}),
    "return_token_offsets": (None, False),
    "return_weight_versions": (None, False),
    "logits_processors": (None, []),
    # chat
    "chat_template": (None,),
    "media_io_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
}
"""Fields with their neutral values."""

WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "session_id": (None,),
    "service_tier": (None, "auto", "default"),
    "verbosity": (None, "medium"),
    "store": (None, False),
    "guided_decoding_backend": OWN_BACKENDS,
}
"""Accepted fields that change nothing here, with the values that ask for nothing."""


def refuse_unsupported(request: Any) -> None:
    """Raises RequestError for the first unsupported field of a body whose value would have an
    effect."""
    refuse_other_values(request, NEUTRAL, " yet")


def given(request: object, names: Iterable[str]) -> dict[str, Any]:
    """The values of these fields that are not null."""
    return without_nulls({name: getattr(request, name) for name in names}) or {}


def text_request(request: GenerationFields, prompt: Source) -> TextRequest[Source]:
    """The request by the fields that completions and chats have in common; log-probabilities are
    not among them. Raises RequestError, but `refuse_unsupported` comes before."""
    _check_best_of(request)
    reply = ReplyOptions(
        stream=request.stream is True,
        n=request.n or 1,
        has_prompt_logprobs=request.prompt_logprobs is not None,
        echo=request.echo is True,
        has_token_ids=request.return_token_ids is True,
        has_metrics=request.include_metrics is True,
        tokens_as_ids=request.return_tokens_as_token_ids,
    )
    read_stream_options(reply, request.stream_options)
    ignored = _without_effect(request)
    if request.use_beam_search or request.length_penalty not in (None, 1.0):
        ignored += read_beam_fields(request)
    asked = TextRequest.of(
        request,
        prompt,
        sampling=given(request, SAME_NAME) | extra_args(request),
        max_tokens=request.max_tokens,
        default_max_tokens=request.default_max_tokens,
        num_samples=request.best_of,
        has_beams=request.use_beam_search is True,
        reply=reply,
        ignored=ignored,
    )
    if (backend := request.guided_decoding_backend) is not None:
        check_backend("guided_decoding_backend", backend, _wrong_backend)
    if any(getattr(request, name) is not None for name in CONSTRAINTS):
        read_constraint(request, asked)
    elif getattr(request, "tools", None):
        asked.name_constraint("tools")  # a grammar holds their calls
    return asked


SAME_NAME = (
    {field.name for field in msgspec.structs.fields(GenerationFields)}
    & {field.name for field in msgspec.structs.fields(SamplingParams)}
) - {"logprobs", "max_tokens", "prompt_logprobs", "structured_outputs"}
"""Fields that mean the same in a request and in `SamplingParams`, which checks them."""


def _without_effect(request: GenerationFields) -> list[str]:
    return [
        name
        for name, neutral in WITHOUT_EFFECT.items()
        if getattr(request, name, None) not in neutral
    ]


def extra_args(request: Any) -> dict[str, Any]:
    """The additional arguments of a body; as in vLLM, those of a transfer are among them."""
    extra = checked_json(request.vllm_xargs, "vllm_xargs")
    transfer = checked_json(getattr(request, TRANSFER, None), TRANSFER)
    if transfer is not None:
        extra = {**(extra or {}), TRANSFER: transfer}
    return {} if extra is None else {"extra_args": extra}


def read_stream_options(reply: ReplyOptions, options: StreamOptions | None) -> None:
    """Raises RequestError for options of a reply that does not stream."""
    if options in (None, StreamOptions()):
        return
    if not reply.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", parameter="stream_options"
        )
    reply.include_usage = options.include_usage is True
    reply.continuous_usage = reply.include_usage and options.continuous_usage_stats is True


def read_logprobs(asked: AnyRequest, num_top: int | None, needed: str = "must be set") -> None:
    """`num_top`: log-probabilities of so many tokens; None: none are asked for. `needed`: what
    `logprobs` must be for them. Raises RequestError."""
    asked.reply.num_top = num_top
    if not asked.sampling.get("logprob_token_ids"):
        check_top("logprobs", num_top)
        if num_top is not None:
            asked.sampling["logprobs"] = num_top
    elif num_top is None:
        raise RequestError(
            f"when using `logprob_token_ids`, `logprobs` {needed}.", parameter="logprob_token_ids"
        )


def read_prompt_logprobs(asked: AnyRequest, num_top: int | None) -> None:
    """Raises RequestError."""
    check_top("prompt_logprobs", num_top)
    if num_top and asked.reply.stream:
        raise RequestError(
            "`prompt_logprobs` are not available when `stream=True`.", parameter="prompt_logprobs"
        )
    if num_top is not None:
        asked.sampling["prompt_logprobs"] = num_top


def check_top(name: str, num_top: int | None) -> None:
    """Raises RequestError for a number of the best tokens that cannot be."""
    if num_top is not None and num_top < -1:
        raise RequestError(
            f"`{name}` must be a positive value or -1.", parameter=name, value=num_top
        )


def _check_best_of(request: GenerationFields) -> None:
    """Checks `best_of`, the number of samples that are generated; `n` of them are shown."""
    wanted, n = request.best_of, 1 if request.n is None else request.n
    if wanted in (None, n) or n < 1:
        return
    if wanted < n:
        rule = f"must be at least n={n}"
    elif request.is_chat:
        rule = "is not supported in chats unless it equals n"
    elif request.use_beam_search:
        rule = "is not supported with beam search unless it equals n"
    elif request.stream:
        rule = "must equal n with stream=true, because samples are compared when they are complete"
    else:
        return
    raise RequestError(
        f"best_of {rule}, got {wanted}; leave it out.", parameter="best_of", value=wanted
    )


def _wrong_backend(message: str) -> RequestError:
    return RequestError(message, parameter="guided_decoding_backend")
