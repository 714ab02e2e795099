"""The requests and replies of text-generation-inference, and the completions that ask the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.errors import RequestError
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.generation.replies.portions import ReplyHead, StepWriter, Update, check_end
from quire.server.generation.request_fields import Count, Int64, TokenId
from quire.server.http.event_stream import event
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.generation.begin import MakeWriter
    from quire.server.generation.prompts import PreparedPrompt

_DEFAULT_TOKENS = 100


class TgiGrammar(msgspec.Struct, kw_only=True):
    """Form of the reply."""

    type: Literal["json", "regex", "json_schema"]
    value: str | dict[str, Any]


class TgiParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many tokens are generated, and how each is chosen."""

    max_new_tokens: Int64 | None = None
    """By default 100."""
    do_sample: bool | None = False
    """Without it and without a field that shapes the choice, the most likely token is taken."""
    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int64 | None = None
    stop: list[str] | None = None
    truncate: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Keep so many of the last tokens of the prompt."""
    grammar: TgiGrammar | None = None
    return_full_text: bool | None = False
    """Begin the text with the prompt."""
    details: bool | None = False
    adapter_id: str | None = None
    """Replaces the model's name."""
    best_of: Int64 | None = None
    decoder_input_details: bool | None = False
    top_n_tokens: Int64 | None = None
    typical_p: float | None = None
    watermark: bool | None = False


class TgiRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt to be continued."""

    inputs: str
    parameters: TgiParameters | None = None
    model: str | None = None
    stream: bool | None = None
    """At `/` alone: whether the reply is a stream."""


class TgiToken(msgspec.Struct, kw_only=True):
    """A token of the reply."""

    id: TokenId
    text: str
    logprob: float
    special: bool


Finish = Literal["length", "eos_token", "stop_sequence"]


class TgiDetails(msgspec.Struct, kw_only=True):
    """Counts of a whole reply, and its tokens."""

    finish_reason: Finish
    generated_tokens: Count
    seed: Int64 | None = None
    prefill: list[TgiToken] = []
    tokens: list[TgiToken] = []


class TgiReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A whole reply."""

    generated_text: str
    details: TgiDetails | None = None


class TgiStreamDetails(msgspec.Struct, kw_only=True):
    """Counts, in the last event."""

    finish_reason: Finish
    generated_tokens: Count
    input_length: Count
    seed: Int64 | None = None


class TgiEvent(msgspec.Struct, kw_only=True):
    """A token of a stream. The last one has the whole text."""

    index: Count
    token: TgiToken
    generated_text: str | None = None
    details: TgiStreamDetails | None = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,), "decoder_input_details": (False,), "top_n_tokens": (0,), "typical_p": (1.0,),
    "watermark": (False,),
}  # fmt: skip
"""Parameters of what is not here, with the values that switch it off."""
_SAME = ("top_p", "repetition_penalty", "frequency_penalty", "seed", "stop")


def completion_request(
    asked: TgiRequest, parameters: TgiParameters, *, stream: bool
) -> CompletionRequest:
    """The completion request. Raises RequestError for a parameter that asks for something else."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(parameters, name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"parameters.{name} must be {neutral[0]!r}: this is not supported",
                parameter=f"parameters.{name}",
                value=value,
            )
    fields = {name: getattr(parameters, name) for name in _SAME}
    top_k = parameters.top_k or None
    shapes = (parameters.temperature not in (None, 1.0), top_k, parameters.top_p not in (None, 1.0))
    grammar = parameters.grammar
    kind = None if grammar is None else "regex" if grammar.type == "regex" else "json"
    return CompletionRequest(
        **fields,
        model=parameters.adapter_id or asked.model,
        prompt=asked.inputs,
        stream=stream,
        max_tokens=_DEFAULT_TOKENS if parameters.max_new_tokens is None
        else parameters.max_new_tokens,
        temperature=(parameters.temperature if parameters.do_sample or any(shapes) else 0.0),
        top_k=top_k,
        truncate_prompt_tokens=parameters.truncate,
        truncation_side=None if parameters.truncate is None else "left",
        include_stop_str_in_output=True,
        logprobs=0 if parameters.details or stream else None,
        structured_outputs=None if kind is None or grammar is None else {kind: grammar.value},
    )  # fmt: skip


_NAMES = {
    **{name: f"parameters.{name}" for name in (*_SAME, "temperature", "top_k")},
    "max_tokens": "parameters.max_new_tokens",
    "truncate_prompt_tokens": "parameters.truncate",
    "structured_outputs": "parameters.grammar",
    "prompt": "inputs",
    "input_tokens": "inputs",
}
"""Fields of the completion by their names here."""


@contextmanager
def named_as_asked() -> Iterator[None]:
    """Errors that name a field of the completion name the field that was sent."""
    try:
        yield
    except RequestError as error:
        name = (error.parameter or "").partition(".")[0].partition("[")[0]
        if name not in _NAMES:
            raise
        message = str(error)
        if name not in ("prompt", "input_tokens"):  # also words
            message = message.replace(error.parameter or name, _NAMES[name])
        raise RequestError(message, parameter=_NAMES[name], value=error.value) from None


class TgiWriter(StepWriter):
    """Writes the reply to one request."""

    def __init__(
        self, asked: TgiRequest, parameters: TgiParameters, tokenizer: Tokenizer | None,
        *, is_list: bool,
    ) -> None:  # fmt: skip
        """`is_list`: a whole reply is in a list."""
        self._prompt = asked.inputs if parameters.return_full_text else ""
        self._has_details = parameters.details is True
        self._seed = parameters.seed
        self._is_list = is_list
        pieces = None if tokenizer is None else tokenizer.pieces
        self._special_ids = frozenset() if pieces is None else pieces.special_ids
        self._texts: list[str] = []
        """Texts of the events so far."""
        self._num_tokens = 0
        self._last_id = 0

    def whole(self, finals: Sequence[RequestOutput]) -> Any:
        reply = super().whole(finals)
        return [reply] if self._is_list else reply

    def part(self, output: RequestOutput, one: CompletionOutput) -> TgiReply:
        """The whole reply."""
        check_end(output, one)
        details = None
        if self._has_details:
            details = TgiDetails(
                finish_reason=_finish_reason(one),
                generated_tokens=len(one.token_ids),
                seed=self._seed,
                tokens=self._tokens(one),
            )
        return TgiReply(generated_text=self._prompt + one.text, details=details)

    def events(self, updates: list[Update]) -> bytes:  # type: ignore[override]
        return b"".join(
            event(msgspec.json.encode(one)) for each in updates for one in self._of(each)
        )

    def line(self, data: bytes) -> bytes:
        return event(data)

    def _of(self, update: Update) -> list[TgiEvent]:
        """An event for each token. The texts of those that are not special make the reply."""
        one = update.completion
        tokens = self._tokens(one)
        if one.finish_reason is not None:
            check_end(update.output, one)
        if not tokens:
            if one.finish_reason is None and not one.text:
                return []
            tokens = [TgiToken(id=self._last_id, text="", logprob=0.0, special=False)]
        else:
            self._num_tokens += len(tokens)
        shown = [token for token in tokens if not token.special]
        if "".join(token.text for token in shown) != one.text:  # some is held back, or was
            for token in tokens:
                token.text = ""
            holder = shown[-1] if shown else tokens[-1]
            holder.text, holder.special = one.text, False  # clients skip special tokens
        self._last_id = tokens[-1].id
        self._texts.append(one.text)
        first = self._num_tokens - len(tokens) + 1
        found = [TgiEvent(index=first + i, token=token) for i, token in enumerate(tokens)]
        if one.finish_reason is not None:
            found[-1].generated_text = self._prompt + "".join(self._texts)
            found[-1].details = TgiStreamDetails(
                finish_reason=_finish_reason(one),
                generated_tokens=self._num_tokens,
                input_length=len(update.output.prompt_token_ids or ()),
                seed=self._seed,
            )
        return found

    def _tokens(self, one: CompletionOutput) -> list[TgiToken]:
        if not isinstance(one.logprobs, FlatLogprobs):
            return []
        flat = one.logprobs
        values, texts = flat.logprobs, flat.decoded_tokens
        return [
            TgiToken(
                id=token_id,
                text=texts[start] or "",
                logprob=max(values[start], _LEAST),
                special=token_id in self._special_ids,
            )
            for token_id, start in zip(one.token_ids, flat.start_indices, strict=True)
        ]


_LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not have."""


def _finish_reason(one: CompletionOutput) -> Finish:
    if one.finish_reason == "length":
        return "length"
    return "eos_token" if one.stop_reason is None else "stop_sequence"


def writer_of(
    asked: TgiRequest, parameters: TgiParameters, *, is_list: bool = False
) -> MakeWriter[CompletionRequest, PreparedPrompt, TgiWriter]:
    """Makes the writer of the reply to a request."""

    def writer(_: CompletionRequest, head: ReplyHead, prompts: list[PreparedPrompt]) -> TgiWriter:
        del prompts
        tokenizer = head.target.model.loaded_engine().tokenizer
        return TgiWriter(asked, parameters, tokenizer, is_list=is_list)

    return writer
