"""`/inference/v1/generate`: the writer of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.tokens.schema import (
    OutputMode,
    TokenCandidate,
    TokenLogprobs,
    TokenPosition,
    TokensChoice,
    TokensChunk,
    TokensReply,
)
from quire.server.generation.chunks import UsageCounter
from quire.server.generation.logprobs import LogprobsWriter, finite_logprob, prompt_logprobs
from quire.server.generation.reply import ReplyHead, Update, Writer
from quire.server.generation.usage import usage_of
from quire.server.http.event_stream import event
from quire.server.json_pieces import JsonList, encoded
from quire.server.requests.request import AnyRequest
from quire.tokenizer import Tokenizer


class TokensWriter(Writer):
    """Replies to a request of one prompt, with `n` choices."""

    def __init__(
        self, asked: AnyRequest, head: ReplyHead, tokenizer: Tokenizer | None, mode: OutputMode
    ) -> None:
        num_top = asked.reply.num_top
        self._num_top = -1 if num_top == -1 else max(1, num_top or 0)
        self._options = asked.reply
        self._head = head
        self._mode: OutputMode = mode
        self._logprobs = LogprobsWriter(tokenizer, self._num_top, head.tokens_as_ids)
        self._counter = UsageCounter()
        self._has_begun = False
        self.repeats_prompt = asked.reply.has_token_ids

    def whole(self, finals: Sequence[RequestOutput]) -> TokensReply:
        [final] = finals
        choices = JsonList()
        for one in final.outputs:
            choices.add([self._choice(one)])
        reply = TokensReply(
            request_id=self._head.id,
            model=self._head.model,
            created=self._head.created,
            output_mode=self._mode,
            choices=choices.as_field(),
            usage=usage_of(finals),
        )
        of_prompt = final.prompt_logprobs
        if isinstance(of_prompt, FlatLogprobs):
            reply.prompt_logprobs = prompt_logprobs(of_prompt).as_field()
        if self._options.has_token_ids:
            reply.prompt_token_ids = JsonList(final.prompt_token_ids or []).as_field()
        return reply

    def last(self) -> bytes:
        if not self._head.include_usage:
            return b""
        return event(msgspec.json.encode(self._chunk([], self._counter.total())))

    def events(self, updates: Sequence[Update]) -> bytes:
        """The chunks of these updates: one for each that has a token, text or the end."""
        parts = []
        for each in updates:
            one = each.completion
            self._counter.see(each.prompt_index, each.output)
            self._counter.add(one.index, len(one.token_ids))
            has_text = self._mode == "text" and bool(one.text)
            if one.token_ids or one.finish_reason is not None or has_text:
                parts.append(event(b"".join(encoded(self._update(each)))))
        return b"".join(parts)

    def _update(self, each: Update) -> TokensChunk:
        choice = self._choice(each.completion)
        chunk = self._chunk([choice])
        if self._head.continuous_usage:
            chunk.usage = self._counter.of_choice(each.prompt_index, choice.index)
        if self._options.has_token_ids and not self._has_begun:
            chunk.prompt_token_ids = JsonList(each.output.prompt_token_ids or []).as_field()
        self._has_begun = True
        return chunk

    def _chunk(self, choices: list[TokensChoice], usage: Any = None) -> TokensChunk:
        return TokensChunk(
            request_id=self._head.id, output_mode=self._mode, choices=choices, usage=usage
        )

    def _choice(self, one: CompletionOutput) -> TokensChoice:
        choice = TokensChoice(
            index=one.index,
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=JsonList(one.token_ids).as_field(),
        )
        if self._mode == "text":
            choice.text, choice.logprobs = one.text, self._logprobs.chat(one)
        else:
            choice.logprobs = self._token_logprobs(one)
        return choice

    def _token_logprobs(self, one: CompletionOutput) -> TokenLogprobs | None:
        """Log-probabilities that name tokens by their ids; None if none were asked for."""
        positions = one.logprobs
        if not isinstance(positions, FlatLogprobs):
            return None
        content = JsonList()
        for place in range(min(len(one.token_ids), len(positions))):
            entries = [
                TokenCandidate(
                    token_id=token_id, logprob=finite_logprob(found.logprob), rank=found.rank
                )
                for token_id, found in positions[place].items()
            ]
            chosen = entries[0]
            shown = entries if self._num_top == -1 else entries[: self._num_top]
            content.add([TokenPosition(
                token_id=chosen.token_id, logprob=chosen.logprob, rank=chosen.rank,
                top_logprobs=shown,
            )])  # fmt: skip
        return TokenLogprobs(content=content.as_field())
