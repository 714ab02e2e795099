"""Writes the replies of text-generation-inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.hugging_face.tgi_schema import (
    Finish,
    TgiDetails,
    TgiEvent,
    TgiParameters,
    TgiReply,
    TgiRequest,
    TgiStreamDetails,
    TgiToken,
)
from quire.server.generation.reply import ReplyHead, Update, check_end
from quire.server.generation.streams import StepWriter
from quire.server.http.event_stream import event
from quire.server.requests.request import AnyRequest
from quire.tokenizer import Tokenizer


class TgiWriter(StepWriter):
    """Writes the reply to one request."""

    def __init__(self, asked: TgiRequest, tokenizer: Tokenizer | None, *, is_list: bool) -> None:
        """`is_list`: a whole reply is in a list."""
        parameters = asked.parameters or TgiParameters()
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
    asked: TgiRequest, *, is_list: bool = False
) -> Callable[[AnyRequest, ReplyHead, list[Any]], TgiWriter]:
    """Makes the writer of the reply to a request."""

    def writer(_: AnyRequest, head: ReplyHead, prompts: list[Any]) -> TgiWriter:
        del prompts
        return TgiWriter(asked, head.target.model.loaded_engine().tokenizer, is_list=is_list)

    return writer
