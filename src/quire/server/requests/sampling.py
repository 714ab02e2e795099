"""From a request to `SamplingParams`, which checks the values; others are checked where the engine
takes the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.config import ModelConfig
from quire.errors import RequestError
from quire.params import GREEDY_BELOW, RequestOutputKind, SamplingParams
from quire.server.args import ServerArgs
from quire.server.requests.limits import check_max_tokens
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.structured.params import structured_outputs_of

_LISTS = (
    "logit_bias", "bad_words", "allowed_token_ids", "logprob_token_ids", "stop_token_ids",
)  # fmt: skip
"""Fields that may have as many entries as the vocabulary has tokens."""
_PASSES = 8
_MAX_LIST_ENTRIES = 1 << 20
"""Most entries of these fields, for all sequences of a request together."""


def lists_work(given: Mapping[str, Any] | SamplingParams) -> int:
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


def _list_sizes(given: Mapping[str, Any] | SamplingParams) -> dict[str, int]:
    if isinstance(given, SamplingParams):
        return {name: len(getattr(given, name, None) or ()) for name in _LISTS}
    return {name: len(given.get(name) or ()) for name in _LISTS}


def sampling_params(model: ServedModel, asked: AnyRequest) -> SamplingParams:
    """The parameters that a request asks for, over the model's defaults.

    Raises RequestError for what is invalid, not supported yet, or beyond the server's bounds.
    """
    check_bounds(asked, model.args)
    config = model.config.model
    return params_of(asked, config.default_sampling_params, _max_tokens(asked, config))


def params_of(
    asked: AnyRequest, defaults: Mapping[str, Any], max_tokens: int | None
) -> SamplingParams:
    """The parameters that a request asks for, over these defaults, with this limit of the reply.

    Raises RequestError for what is invalid, or not supported yet.
    """
    given = asked.sampling
    stops = [*given.get("stop_token_ids", ()), *defaults.get("stop_token_ids", ())]
    known = {**asked.defaults, **defaults}
    values = {**{k: v for k, v in known.items() if k != "max_tokens"}, **given}
    if stops:
        values["stop_token_ids"] = list(dict.fromkeys(stops))
    values["max_tokens"] = max_tokens
    num_samples = asked.num_samples or 1
    if (values.get("n") or 1) < num_samples:
        _check_samples(values, num_samples)
        values["n"] = num_samples
        if values.get("logprobs") is None and not values.get("logprob_token_ids"):
            values["logprobs"] = 0  # samples are compared by them
    names = ("logprobs", "prompt_logprobs")
    if values.get("logprob_token_ids") or any(values.get(name) is not None for name in names):
        values["flat_logprobs"] = True
    is_stream = asked.reply.stream
    values["output_kind"] = RequestOutputKind.DELTA if is_stream else RequestOutputKind.FINAL_ONLY
    if asked.constraint is not None:
        values["structured_outputs"] = structured_outputs_of(asked.constraint)
    values["skip_clone"] = True
    return SamplingParams.from_optional(**values)


def check_bounds(asked: AnyRequest, args: ServerArgs) -> None:
    """Raises RequestError if the request is beyond the server's limits for one request."""
    given = asked.sampling
    stops = given.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    _at_most("n", given.get("n") or 1, args.max_n, "max_n")
    _at_most("best_of", asked.num_samples or 1, args.max_n, "max_n")
    _at_most("stop", len(stops), args.max_stop_strings, "max_stop_strings", "strings")
    longest = max((len(text) for text in stops), default=0)
    _at_most("stop", longest, args.max_stop_string_chars, "max_stop_string_chars", "characters")
    count = len(given.get("stop_token_ids") or [])
    _at_most("stop_token_ids", count, args.max_stop_token_ids, "max_stop_token_ids", "ids")


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


def _max_tokens(asked: AnyRequest, model: ModelConfig) -> int | None:
    """The limit of the reply; None: whatever the context has room for."""
    if asked.reply.is_echo_alone:
        return 1  # the least that the engine generates
    wanted = asked.max_tokens
    if wanted is None:
        wanted = asked.default_max_tokens
    if wanted is None:
        wanted = model.default_sampling_params.get("max_tokens")
    elif wanted < 1:
        raise RequestError(
            f"max_tokens must be at least 1, got {wanted}.", parameter="max_tokens", value=wanted
        )
    else:
        check_max_tokens("max_tokens", wanted, model.max_model_len)
    limits = [limit for limit in (wanted, model.max_output_tokens) if limit is not None]
    return min(limits, default=None)
