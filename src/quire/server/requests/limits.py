"""Estimates the work of a request from its options, and refuses too much before any is done."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.config import ModelConfig
from quire.errors import RequestError, quoted
from quire.frontend.inputs.refusals import prompt_too_long
from quire.params import SamplingParams
from quire.server.args import ServerArgs
from quire.server.requests.request import ReplyOptions
from quire.server.work_pool import INLINE_SIZE

_LEAST_LIMIT = 1 << 20
_BYTES_PER_TOKEN = 8
_LARGE_REPLY = 1 << 24
"""Most values in a reply if log-probabilities of all tokens are allowed, or the model has vectors
of tokens."""


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """The limits of one request's work. Every method raises RequestError beyond them."""

    max_prompts: int
    max_tokenize_bytes: int
    max_reply_values: int
    max_model_len: int

    @classmethod
    def of(cls, args: ServerArgs, model: ModelConfig) -> WorkLimits:
        """The limits of `args`; by default those that the model's context implies."""
        length = model.max_model_len
        values = (1 + model.max_logprobs) * length
        if model.max_logprobs == -1:
            values = _LARGE_REPLY
        if model.pooling is not None:
            values = max(_LARGE_REPLY, length * model.pooling.width)
        return cls(
            max_prompts=args.max_prompts,
            max_tokenize_bytes=args.max_tokenize_bytes
            or max(_LEAST_LIMIT, _BYTES_PER_TOKEN * length),
            max_reply_values=args.max_reply_values or max(_LEAST_LIMIT, values),
            max_model_len=length,
        )

    def check_prompts(self, num_prompts: int, n: int, name: str = "prompt") -> None:
        """Checks the number of prompts and of their continuations; `name` is the prompts' field."""
        if num_prompts * n > self.max_prompts:
            product = f" x n {n} = {num_prompts * n}" if n > 1 else ""
            raise RequestError(
                f"{num_prompts} prompts{product} are more than this server allows in one request "
                f"(max_prompts {self.max_prompts}).",
                parameter="n" if num_prompts <= self.max_prompts else name,
                value=num_prompts * n,
            )

    def check_text(self, name: str, size: int) -> None:
        """Checks a text to be tokenized, by its bytes (or characters); `name` is its field."""
        if size > self.max_tokenize_bytes:
            raise RequestError(
                f"{name} has {size} bytes, more than this server turns into tokens at once "
                f"(max_tokenize_bytes {self.max_tokenize_bytes}).",
                parameter=name,
                value=size,
            )

    def check_vectors(self, num_values: int, name: str) -> None:
        """Checks the numbers of the vectors of all tokens of a request's texts; `name` is their
        field."""
        if num_values > self.max_reply_values:
            raise RequestError(
                f"the vectors of all tokens of {name} have {num_values} numbers or more, which is "
                "more than this server allows in one reply (max_reply_values "
                f"{self.max_reply_values}); send fewer texts in a request, or shorter ones",
                parameter=name,
                value=num_values,
            )

    def check_reply(
        self,
        reply: ReplyOptions,
        params: SamplingParams,
        prompt_lens: Sequence[int],
        vocab_size: int,
    ) -> None:
        """Checks the size of the reply to prompts of these lengths, in tokens."""
        parts = _reply_parts(reply, params, prompt_lens, self.max_model_len, vocab_size)
        total = sum(part.num_values for part in parts)
        if total <= self.max_reply_values:
            return
        largest = max(parts, key=lambda part: part.num_values)
        terms = " + ".join(part.text for part in parts)
        raise RequestError(
            f"The reply could hold {terms} = {total} values, more than this server allows in one "
            f"reply (max_reply_values {self.max_reply_values}). Ask for less with a smaller "
            f"{' or '.join(largest.factors)}.",
            parameter=largest.factors[0],
            value=total,
        )


@dataclass(frozen=True, slots=True)
class _ReplyPart:
    """One product in the size of a reply."""

    text: str
    num_values: int
    factors: tuple[str, ...]
    """The options that determine it."""


def _reply_parts(
    reply: ReplyOptions,
    params: SamplingParams,
    prompt_lens: Sequence[int],
    max_model_len: int,
    vocab_size: int,
) -> list[_ReplyPart]:
    """The products in a reply's size, without its new text."""
    n, num_prompt = params.n, sum(prompt_lens)
    parts = []

    def add(what: str, copies: int, tokens: int, each: int, *factors: str) -> None:
        if tokens * each:
            text = f"n {copies} x {tokens} {what} x {each}"
            parts.append(_ReplyPart(text, copies * tokens * each, factors))

    if params.num_logprobs is not None:
        most = max_model_len if params.max_tokens is None else params.max_tokens
        tokens = sum(min(most, max_model_len - length) for length in prompt_lens)
        each = _num_entries(params.num_logprobs, vocab_size)
        add("tokens with log-probabilities", n, tokens, each, "logprobs", "max_tokens", "n")
    if params.prompt_logprobs is not None:
        each = _num_entries(params.prompt_logprobs, vocab_size)
        if reply.has_prompt_logprobs:
            copies = n if reply.repeats_prompt else 1
            add("prompt tokens with log-probabilities", copies, num_prompt, each, "prompt_logprobs")
        if reply.echo and reply.repeats_prompt:
            add("echoed tokens with log-probabilities", n, num_prompt, each, "logprobs", "n")
    if reply.echo or reply.has_prompt_text:
        add("prompt tokens", n, num_prompt, 1, "n")
    if reply.has_token_ids:
        add("prompt token ids", n, num_prompt, 1, "n")
    return parts


def _num_entries(num_logprobs: int, vocab_size: int) -> int:
    """Log-probabilities at one position: the most likely ones and the sampled one."""
    return 1 + (vocab_size if num_logprobs == -1 else num_logprobs)


def count_chars(value: object, at_most: int = INLINE_SIZE) -> int:
    """Characters of all texts in a JSON value, plus one for each value. Counting stops soon after
    `at_most`, by default where the value is too large for the event loop."""
    count, left = 0, [value]
    while left and count <= at_most:
        each = left.pop()
        count += 1
        if isinstance(each, str):
            count += len(each)
        elif isinstance(each, dict):
            left += each
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif hasattr(each, "__struct_fields__"):
            left += [getattr(each, name) for name in each.__struct_fields__]
    return count


def check_max_tokens(name: str, max_tokens: int | None, max_model_len: int) -> None:
    """Raises RequestError if the reply alone is longer than the context; `name` is its field."""
    if max_tokens is not None and max_tokens > max_model_len:
        raise RequestError(
            f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            parameter=name,
            value=max_tokens,
        )


def params_in_room(
    params: SamplingParams, num_prompt_tokens: int, max_model_len: int
) -> SamplingParams:
    """The parameters for a prompt of this length: with what is left of the context as `max_tokens`,
    if that is less. Raises RequestError if nothing is left.

    The engine validates them again, since `min_tokens` may be more than what is left.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise prompt_too_long(num_prompt_tokens, max_model_len)
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    fitted = copy.copy(params)
    fitted.max_tokens = room
    return fitted


def refuse_other_values(
    request: object, neutral: Mapping[str, tuple[object, ...]], where: str = ""
) -> None:
    """Raises RequestError for the first field whose value is neither null nor neutral. The message
    suggests the first of the neutral values. `where`: what it says after "not supported"."""
    for name, values in neutral.items():
        value = getattr(request, name, None)
        if value is not None and value not in values:
            raise RequestError(
                f"{name} is not supported{where}, got {quoted(value):.100}; leave it at "
                f"{values[0]!r}.",
                parameter=name,
                value=value,
            )
