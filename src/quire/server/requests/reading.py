"""Reads the fields that completions and chats have in common into a `TextRequest`, and parts of
them that other APIs have too: constraints, additional arguments, options of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.frontend.kv_hand_off import FIELD as TRANSFER
from quire.param_checks import checked_json
from quire.params import SamplingParams
from quire.server.requests.beam_fields import read_beam_fields
from quire.server.requests.fields import (
    ConstraintFields,
    GenerationFields,
    ResponseFormat,
    StreamOptions,
)
from quire.server.requests.limits import refuse_other_values
from quire.server.requests.request import AnyRequest, ReplyOptions, Source, TextRequest
from quire.structured.params import FIELD, KINDS, OWN_BACKENDS, check_backend

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


def without_nulls(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields that are not null; None if the object is missing."""
    if fields is None:
        return None
    return {name: value for name, value in fields.items() if value is not None}


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
    read_constraint(request, asked)
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


_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Older names of fields of `structured_outputs`."""
_SCHEMAS = frozenset({"json", "structural_tag"})
_PLACES = {
    "json": "response_format.json_schema.schema",
    "structural_tag": "response_format",
    "json_object": "response_format",
    FIELD: "response_format",
}
"""Places in `response_format` of the fields of `structured_outputs`."""


def read_constraint(request: ConstraintFields, asked: AnyRequest) -> None:
    """Sets the constraint on the reply, and the fields that give it. Raises RequestError."""
    if (backend := request.guided_decoding_backend) is not None:
        check_backend("guided_decoding_backend", backend, _wrong_backend)
    for fields in _ways(request):
        known = {} if asked.constraint is None else asked.constraint
        both = known.keys() & fields.keys()
        if differ := [
            name for name in sorted(both) if not _are_same(name, known[name], fields[name])
        ]:
            raise RequestError(
                "You can only use one kind of structured outputs constraint but multiple are "
                f"specified: {', '.join(differ)} is given twice with different values",
                parameter=FIELD,
            )
        asked.constraint = fields | known
    asked.names |= _places(request)


def _are_same(name: str, one: object, other: object) -> bool:
    """Whether two values of a field say the same; each of two equal schemas may be text."""
    text = _as_json(one) if name in _SCHEMAS else None
    return one == other if text is None else text == _as_json(other)


def _as_json(schema: object) -> bytes | None:
    """A text that is the same for equal schemas; None: this is no JSON."""
    try:
        value = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        return msgspec.json.encode(value, order="deterministic")
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError):
        return None


def _ways(request: ConstraintFields) -> Iterator[dict[str, Any]]:
    """The fields that each way gives, of those that are used."""
    if (own := without_nulls(request.structured_outputs)) is not None:
        yield own
    if request.response_format is not None and (fields := _asked_by(request.response_format)):
        yield fields
    if guided := without_nulls({new: getattr(request, old) for old, new in _GUIDED.items()}):
        yield guided


def _places(request: ConstraintFields) -> dict[str, str]:
    """Fields of the body by those of `structured_outputs`, where it does not have them itself."""
    guided = {new: old for old, new in _GUIDED.items() if getattr(request, old) is not None}
    own, wanted = request.structured_outputs or {}, request.response_format
    found: dict[str, str] = {}
    if wanted is not None and all(own.get(kind) is None for kind in KINDS):
        found = dict(_PLACES)
        if wanted.type == "json_object":
            found["json"] = "response_format.schema"
        found |= {name: f"{FIELD}.{name}" for name in own}
    elif request.structured_outputs is None:
        # Without another field, it is the calls of tools that a grammar holds.
        has_tools = bool(getattr(request, "tools", None))
        first = next(iter(guided.values()), "tools" if has_tools else None)
        found = {} if first is None else dict.fromkeys((FIELD, *KINDS), first)
    found |= guided
    return {name if name == FIELD else f"{FIELD}.{name}": place for name, place in found.items()}


def _asked_by(wanted: ResponseFormat) -> dict[str, Any]:
    """A `response_format` as fields of `structured_outputs`. Raises RequestError."""
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"json_object": True} if wanted.schema is None else {"json": wanted.schema}
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise _wrong_format(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided."
            )
        if wanted.json_schema.schema is None:
            raise _wrong_format("response_format.json_schema must have a schema")
        schema = wanted.json_schema.schema
        return {"json": schema if isinstance(schema, dict) else json.dumps(schema)}
    if wanted.type == "structural_tag":
        names = ("structures", "triggers", "format")
        given = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        return {"structural_tag": json.dumps({"type": wanted.type, **given})}
    raise _wrong_format(
        f"response_format.type {quoted(wanted.type)} is not known; use text, json_object, "
        "json_schema or structural_tag"
    )


def _wrong_format(message: str) -> RequestError:
    return RequestError(message, parameter="response_format")


def _wrong_backend(message: str) -> RequestError:
    return RequestError(message, parameter="guided_decoding_backend")
