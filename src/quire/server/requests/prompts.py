"""Prompts as the engine takes them: token ids of texts, and `prompt_embeds`, which are tensors in
base64. Runs in the server's work pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.errors import PromptError
from quire.frontend.inputs.images.placing import PlacedImages
from quire.frontend.inputs.prompt_embeds import NOT_ENABLED, PlacedRows, embeds_error, read_embeds
from quire.frontend.inputs.prompt_parser import tokens_prompt
from quire.frontend.inputs.refusals import prompt_too_long, text_too_long
from quire.frontend.inputs.tensors import tensor_of
from quire.frontend.inputs.tokenization import Truncation
from quire.inputs import TokensPrompt
from quire.params import SamplingParams
from quire.server.served_model import ServedModel
from quire.server.work_pool import check_wanted

if TYPE_CHECKING:
    from quire.frontend.arguments import RequestOptions
    from quire.frontend.inputs.images.prompts import ImagePrompts
    from quire.frontend.inputs.input_processor import EngineInput
    from quire.images.picture import Picture
    from quire.inputs import PromptType
    from quire.protocol.pooling_params import PoolingParams
    from quire.tokenizer import Tokenizer


def decode_embeds(model: ServedModel, text: str) -> NDArray[np.float32]:
    """The rows of one text. Raises RequestError."""
    check_wanted()
    config = model.loaded_engine().config.model
    if config.prompt_embeds_width is None:
        raise embeds_error(NOT_ENABLED)
    array = tensor_of(text, "prompt_embeds")
    return read_embeds(array, config.prompt_embeds_width, config.max_model_len)


Prompt = TypeVar("Prompt", bound="PreparedPrompt")
_SHORT_CHARS = 1024
"""A text of so many characters is tokenized by one call."""
_TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)


@contextmanager
def as_tenant(tenant: str | None, salt: str | None) -> Iterator[None]:
    """Prompts are prepared for the tenant with this salt (None: there is one tenant), and a request
    with this one."""
    token = _TENANT.set(f"{tenant or ''}/{salt or ''}")
    try:
        yield
    finally:
        _TENANT.reset(token)


async def decoded_pictures(
    model: ServedModel, images: ImagePrompts, given: Sequence[Any], size: int, seconds: float = inf
) -> list[Picture]:
    """The pictures or sounds that a request gives, decoded off the event loop. `size`: characters
    of what is given. `seconds`: most time. Raises RequestError."""
    tenant = _TENANT.get()
    return await model.pool.run_outside(size, images.decoded, given, tenant, check_wanted, seconds)


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
        prompt = tokens_prompt(self.text, self.token_ids, self.salt)
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
