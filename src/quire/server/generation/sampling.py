"""From the fields of a request to `SamplingParams`, with errors in the words of the caller.

The values themselves are checked by `SamplingParams`, and where the engine takes the request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from quire.config import ModelConfig
from quire.errors import RequestError, quoted
from quire.param_checks import checked_json
from quire.params import GREEDY_BELOW, RequestOutputKind, SamplingParams
from quire.server.args import ServerArgs
from quire.server.generation.limits import check_max_tokens
from quire.server.generation.request_fields import (
    ConstraintFields,
    GenerationFields,
    ResponseFormat,
)
from quire.server.served_model import ServedModel
from quire.structured.config import check_backend
from quire.structured.params import FIELD, KINDS, StructuredOutputsParams, structured_outputs_of

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


def constraint(request: ConstraintFields) -> StructuredOutputsParams | None:
    """Constraint on the reply; None: any text is allowed. Raises RequestError."""
    check_backend("guided_decoding_backend", request.guided_decoding_backend, _wrong_backend)
    given = [*_ways(request)]
    if not given:
        return None
    asked: dict[str, Any] = {}
    for fields in given:
        both = asked.keys() & fields.keys()
        if differ := [
            name for name in sorted(both) if not _are_same(name, asked[name], fields[name])
        ]:
            raise RequestError(
                "You can only use one kind of structured outputs constraint but multiple are "
                f"specified: {', '.join(differ)} is given twice with different values",
                parameter=FIELD,
            )
        asked = fields | asked
    with named_as_asked(request):
        return structured_outputs_of(asked)


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


@contextmanager
def named_as_asked(request: ConstraintFields) -> Iterator[None]:
    """Errors of `structured_outputs` name the field that this request has in its place."""
    try:
        yield
    except RequestError as error:
        named = as_asked(request, error)
        if named is error:
            raise
        raise named from None


def as_asked(request: ConstraintFields, error: RequestError) -> RequestError:
    """The error as `named_as_asked` raises it."""
    name = error.parameter or ""
    is_ours = name == FIELD or name.startswith(f"{FIELD}.")
    asked = _place_of(request, name.removeprefix(f"{FIELD}.")) if is_ours else None
    if asked is None:
        return error
    message = str(error).replace(name, asked)
    return RequestError(message, parameter=asked, value=error.value)


def _ways(request: ConstraintFields) -> Iterator[dict[str, Any]]:
    """The fields that each way gives, of those that are used."""
    if request.structured_outputs is not None:
        yield {
            name: value for name, value in request.structured_outputs.items() if value is not None
        }
    if request.response_format is not None and (fields := _asked_by(request.response_format)):
        yield fields
    guided = {new: getattr(request, old) for old, new in _GUIDED.items()}
    if guided := {name: value for name, value in guided.items() if value is not None}:
        yield guided


def _place_of(request: ConstraintFields, name: str) -> str | None:
    """The field of this request that says `name`, where it is not in `structured_outputs`."""
    guided = {new: old for old, new in _GUIDED.items() if getattr(request, old) is not None}
    if name in guided:
        return guided[name]
    own = request.structured_outputs or {}
    if request.response_format is None or any(own.get(kind) is not None for kind in KINDS):
        if request.structured_outputs is not None:
            return None
        has_tools = bool(getattr(request, "tools", None))  # their calls are what a grammar holds
        return next(iter(guided.values()), "tools" if has_tools else None)
    if name == "json" and request.response_format.type == "json_object":
        return "response_format.schema"
    return _PLACES.get(name)


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


_FIELDS_THAT_DIFFER = {"logprobs", "max_tokens", "prompt_logprobs", "structured_outputs"}
_SAME_NAME = (
    {field.name for field in msgspec.structs.fields(GenerationFields)}
    & {field.name for field in msgspec.structs.fields(SamplingParams)}
) - _FIELDS_THAT_DIFFER
"""Fields that mean the same in a request and in `SamplingParams`, which checks them."""
_LISTS = (
    "logit_bias", "bad_words", "allowed_token_ids", "logprob_token_ids", "stop_token_ids",
)  # fmt: skip
"""Fields that may have as many entries as the vocabulary has tokens."""
_PASSES = 8
_MAX_LIST_ENTRIES = 1 << 20
"""Most entries of these fields, for all sequences of a request together."""


def lists_work(given: object) -> int:
    """The size of checking the lists of a request or of its parameters: they are gone through
    several times."""
    return _PASSES * sum(_list_sizes(given).values())


def check_lists(params: SamplingParams, num_prompts: int) -> None:
    """Raises RequestError if the lists, which each sequence of the engine goes through and keeps,
    are too long for so many prompts."""
    sizes, copies = _list_sizes(params), num_prompts * params.n
    total = copies * sum(sizes.values())
    if total > _MAX_LIST_ENTRIES:
        name = max(sizes, key=lambda name: sizes[name])
        raise RequestError(
            f"{name}: lists with {sum(sizes.values())} entries for {num_prompts} prompts x n "
            f"{params.n} are {total} entries, more than this server takes in one request "
            f"({_MAX_LIST_ENTRIES}). Send fewer prompts at once.",
            parameter=name,
            value=total,
        )


def _list_sizes(given: object) -> dict[str, int]:
    return {name: len(getattr(given, name, None) or ()) for name in _LISTS}


def sampling_params(model: ServedModel, request: GenerationFields) -> SamplingParams:
    """The parameters that a request asks for, over the model's defaults.

    Raises RequestError for what is invalid, not supported yet, or beyond the server's bounds.
    """
    check_bounds(request, model.args)
    config = model.config.model
    return params_of(request, config.default_sampling_params, _max_tokens(request, config))


def params_of(
    request: GenerationFields, defaults: Mapping[str, Any], max_tokens: int | None
) -> SamplingParams:
    """The parameters that a request asks for, over these defaults, with this limit of the reply.

    Raises RequestError for what is invalid, or not supported yet.
    """
    values = {name: getattr(request, name) for name in _SAME_NAME}
    values = {name: value for name, value in values.items() if value is not None}
    stops = [*values.get("stop_token_ids", ()), *defaults.get("stop_token_ids", ())]
    values = {**{k: v for k, v in defaults.items() if k != "max_tokens"}, **values}
    if stops:
        values["stop_token_ids"] = list(dict.fromkeys(stops))
    values["max_tokens"] = max_tokens
    values["logprobs"] = _num_logprobs(request)
    num_samples = request.best_of or 1
    if (values.get("n") or 1) < num_samples:
        _check_samples(values, num_samples)
        values["n"] = num_samples
        if values["logprobs"] is None and not request.logprob_token_ids:
            values["logprobs"] = 0  # samples are compared by them
    values["prompt_logprobs"] = _num_prompt_logprobs(request)
    has_logprobs = request.logprob_token_ids or values["logprobs"] is not None
    if has_logprobs or values["prompt_logprobs"] is not None:
        values["flat_logprobs"] = True
    values["output_kind"] = (
        RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    )
    values["structured_outputs"] = constraint(request)
    values["extra_args"] = _extra_args(request)
    values["skip_clone"] = True
    return SamplingParams.from_optional(**values)


def _extra_args(request: GenerationFields) -> dict[str, Any] | None:
    """Additional arguments; as in vLLM, `kv_transfer_params` are among them."""
    extra = checked_json(request.vllm_xargs, "vllm_xargs")
    transfer = checked_json(request.kv_transfer_params, "kv_transfer_params")
    return extra if transfer is None else {**(extra or {}), "kv_transfer_params": transfer}


def check_bounds(request: GenerationFields, args: ServerArgs) -> None:
    """Raises RequestError if the request is beyond the server's limits for one request."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    _at_most("n", request.n or 1, args.max_n, "max_n")
    _at_most("best_of", request.best_of or 1, args.max_n, "max_n")
    _at_most("stop", len(stops), args.max_stop_strings, "max_stop_strings", "strings")
    longest = max((len(text) for text in stops), default=0)
    _at_most("stop", longest, args.max_stop_string_chars, "max_stop_string_chars", "characters")
    count = len(request.stop_token_ids or [])
    _at_most("stop_token_ids", count, args.max_stop_token_ids, "max_stop_token_ids", "ids")


def is_echo_alone(request: GenerationFields) -> bool:
    """Whether the reply is the prompt alone. As in vLLM, one token is generated and counted."""
    return not request.is_chat and request.echo is True and request.max_tokens == 0


def _check_samples(values: dict[str, Any], best_of: int) -> None:
    """Raises RequestError if `n` is invalid, or if all samples would be the same."""
    n = values.get("n", 1)
    if n < 1:
        raise RequestError(f"n must be at least 1, got {n}.", parameter="n", value=n)
    if values.get("temperature", 1.0) < GREEDY_BELOW:
        raise RequestError(
            f"best_of must equal n when using greedy sampling, got {best_of}.",
            parameter="best_of",
            value=best_of,
        )


def _at_most(name: str, value: int, limit: int, option: str, unit: str = "") -> None:
    if value > limit:
        what = f"{value} {unit}".strip()
        raise RequestError(
            f"{name}: {what} is more than this server allows ({option} {limit}).",
            parameter=name,
            value=value,
        )


def _max_tokens(request: GenerationFields, model: ModelConfig) -> int | None:
    """The limit of the reply; None: whatever the context has room for."""
    if is_echo_alone(request):
        return 1  # the least that the engine generates
    name, wanted = "max_tokens", request.max_tokens
    if request.is_chat:
        newer: int | None = getattr(request, "max_completion_tokens", None)
        if newer is not None:
            name, wanted = "max_completion_tokens", newer
    if wanted is None:
        wanted = request.default_max_tokens
    if wanted is None:
        wanted = model.default_sampling_params.get("max_tokens")
    elif wanted < 1:
        raise RequestError(
            f"{name} must be at least 1, got {wanted}.", parameter=name, value=wanted
        )
    else:
        check_max_tokens(name, wanted, model.max_model_len)
    limits = [limit for limit in (wanted, model.max_output_tokens) if limit is not None]
    return min(limits, default=None)


def _num_logprobs(request: GenerationFields) -> int | None:
    """Number of top log-probabilities; None: none, or those of the tokens that
    `logprob_token_ids` names."""
    if request.logprob_token_ids:
        _check_logprob_token_ids(request)
        return None
    name = "top_logprobs" if request.is_chat else "logprobs"
    top: int | None = getattr(request, name)
    if top is not None and top < -1:
        raise RequestError(f"`{name}` must be a positive value or -1.", parameter=name, value=top)
    if not request.is_chat:
        return top
    if top and not request.logprobs:
        raise RequestError(
            "when using `top_logprobs`, `logprobs` must be set to true.", parameter="top_logprobs"
        )
    return (top or 0) if request.logprobs else None


def _check_logprob_token_ids(request: GenerationFields) -> None:
    if request.logprobs is None or request.logprobs is False:
        needed = "must be set to true" if request.is_chat else "must be set"
        raise RequestError(
            f"when using `logprob_token_ids`, `logprobs` {needed}.", parameter="logprob_token_ids"
        )
    if is_echo_alone(request):
        raise RequestError(
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no "
            "output tokens are generated.",
            parameter="logprob_token_ids",
        )


def _num_prompt_logprobs(request: GenerationFields) -> int | None:
    wanted = request.prompt_logprobs
    if wanted is not None and wanted < -1:
        raise RequestError(
            "`prompt_logprobs` must be a positive value or -1.",
            parameter="prompt_logprobs",
            value=wanted,
        )
    if wanted and request.stream:
        raise RequestError(
            "`prompt_logprobs` are not available when `stream=True`.", parameter="prompt_logprobs"
        )
    if wanted is None and not request.is_chat and request.echo:
        echoed: int | None = request.logprobs
        return echoed  # of the echoed prompt; the generated tokens have their own
    return wanted
