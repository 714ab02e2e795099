"""Prompts as the engine takes them, with the token ids of texts; and the `SamplingParams` of a
request, which check the values. Runs in the server's work pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from quire.config import ModelConfig
from quire.errors import PromptError, RequestError
from quire.frontend.inputs.images.placing import PlacedImages
from quire.frontend.inputs.prompt_embeds import PlacedRows
from quire.frontend.inputs.refusals import prompt_too_long, text_too_long
from quire.frontend.inputs.tokenization import Truncation
from quire.inputs import TokensPrompt
from quire.params import GREEDY_BELOW, RequestOutputKind, SamplingParams
from quire.server.args import ServerArgs
from quire.server.json_pieces import check_wanted
from quire.server.requests.limits import check_max_tokens
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.structured.params import structured_outputs_of

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput, RequestOptions
    from quire.inputs import PromptType
    from quire.protocol.pooling_params import PoolingParams
    from quire.tokenizer import Tokenizer


Prompt = TypeVar("Prompt", bound="PreparedPrompt")
_SHORT_CHARS = 1024
"""A text of so many characters is tokenized by one call."""
TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)
"""The tenant for which prompts are prepared, and whose pictures are kept."""


@contextmanager
def as_tenant(tenant: str | None, salt: str | None) -> Iterator[None]:
    """Prompts are prepared for the tenant with this salt (None: there is one tenant), and a request
    with this one."""
    token = TENANT.set(f"{tenant or ''}/{salt or ''}")
    try:
        yield
    finally:
        TENANT.reset(token)


def joint_salt(tenant: str | None, own: str | None) -> str | None:
    """The tenant's salt before a request's own. None: there is one tenant, or the request has
    none."""
    if tenant is None:
        return own
    return tenant if own is None else f"{tenant}/{own}"


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt for the engine."""

    token_ids: list[int]
    text: str | None
    """None if the caller sent token ids."""
    salt: str | None = None
    """The prompt shares cached prefixes only with those of the same salt."""
    predicted_token_ids: Sequence[int] = ()
    """The reply that the client expects."""
    embeds: NDArray[Any] | PlacedRows | None = None
    """Rows in place of token embeddings. An array is for all tokens, which are placeholders."""
    images: PlacedImages | None = None
    """The pictures, and which tokens stand for them."""
    end_token_ids: Sequence[int] = ()
    """Tokens that end the reply, besides those that the request names."""

    def salted(self: Prompt, salt: str | None) -> Prompt:
        """With this salt."""
        return self if salt is None else replace(self, salt=salt)

    async def constrain_reply(
        self,
        model: ServedModel,  # noqa: ARG002
        params: SamplingParams,  # noqa: ARG002
    ) -> list[str]:
        """Adds to `params` what the reply to this prompt has to look like. Returns the names of the
        request's fields that have no effect. Raises RequestError."""
        return []

    def for_engine(self) -> TokensPrompt:
        """The argument of `generate`."""
        prompt: dict[str, Any] = {"prompt_token_ids": self.token_ids}
        if self.text is not None:
            prompt["prompt"] = self.text
        if self.salt is not None:
            prompt["cache_salt"] = self.salt
        if self.images is not None:
            prompt["multi_modal_data"] = {"image": self.images}
        if self.embeds is not None:
            prompt["prompt_embeds"] = self.embeds
        if self.predicted_token_ids:
            prompt["prediction"] = self.predicted_token_ids
        return prompt  # type: ignore[return-value]


def engine_input(
    model: ServedModel,
    name: str,
    prompt: PromptType,
    params: SamplingParams | PoolingParams,
    options: RequestOptions,
) -> EngineInput:
    """A request of the engine for one prompt. Raises RequestError."""
    check_wanted()
    return model.live_engine().input_processor.process(name, prompt, params, options)


async def tokenized(
    model: ServedModel, text: str, add_special_tokens: bool, truncation: Truncation | None = None
) -> list[int]:
    """The token ids that are kept of a prompt's text; a long one is tokenized on a thread. Raises
    RequestError."""
    return await model.pool.run(len(text), prompt_ids, model, text, add_special_tokens, truncation)


def prompt_ids(
    model: ServedModel, text: str, add_special_tokens: bool, truncation: Truncation | None
) -> list[int]:
    """The token ids that are kept of a prompt's text."""
    if truncation is None:
        return encode(model, text, add_special_tokens)
    token_ids = encode(model, text, add_special_tokens, must_fit=False)
    frame = model.tokenizer().special_frame if add_special_tokens else None
    return truncation.kept(token_ids, frame)


def encode(
    model: ServedModel, text: str, add_special_tokens: bool, *, must_fit: bool = True
) -> list[int]:
    """Token ids of a text. Raises RequestError if it is not valid Unicode, is longer than the
    server's limit, or (`must_fit`) cannot fit into the context; then tokenizing stops early.
    """
    check_wanted()
    tokenizer, limits = model.tokenizer(), model.limits
    try:
        num_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise PromptError("the prompt is not valid Unicode", parameter="prompt") from None
    limits.check_text("prompt", num_bytes)
    if len(text) <= _SHORT_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    limit, longest = limits.max_model_len, _longest_piece_bytes(tokenizer)
    if must_fit and longest is not None and num_bytes > limit * longest:
        raise text_too_long(num_bytes, limit * longest, limit)
    from quire.tokenizer.tokenizer import PIECE_CHARS

    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text, add_special_tokens=add_special_tokens):
        ids += piece
        if must_fit and len(ids) >= limit + PIECE_CHARS:
            raise prompt_too_long(len(ids), limit, is_whole=False)
        check_wanted()
    return ids


@lru_cache(maxsize=4)
def _longest_piece_bytes(tokenizer: Tokenizer) -> int | None:
    """Bytes of the longest token; None if the tokens' bytes are not known."""
    pieces = tokenizer.pieces
    if pieces is None:
        return None
    return max(len(pieces.piece_bytes(token_id)) for token_id in range(tokenizer.max_token_id + 1))


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
        wanted = asked.default_max_tokens or model.default_sampling_params.get("max_tokens")
    elif wanted < 1:
        raise RequestError(
            f"max_tokens must be at least 1, got {wanted}.", parameter="max_tokens", value=wanted
        )
    else:
        check_max_tokens("max_tokens", wanted, model.max_model_len)
    limits = [limit for limit in (wanted, model.max_output_tokens) if limit is not None]
    return min(*limits, model.max_model_len) if limits else None
