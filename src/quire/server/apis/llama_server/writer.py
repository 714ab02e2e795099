"""Writes replies in llama-server's form: one JSON object, or an event for each step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.apis.llama_server.schema import LlamaReply, Timings
from quire.server.generation.replies.portions import Update, size_of, size_of_whole, written
from quire.server.http.event_stream import PLAIN_FORM, event
from quire.server.http.problems import HttpError, Problem
from quire.server.work_pool import WorkPool

if TYPE_CHECKING:
    from quire.server.generation.run import Generation

LLAMA_FORM = PLAIN_FORM
"""The last event says `"stop": true`; nothing follows it."""


@dataclass(slots=True)
class LlamaWriter:
    """Writes the reply to one request."""

    model: str
    returns_tokens: bool
    _num_tokens: int = 0
    """Tokens of the reply so far."""

    def whole_size(self, finals: Sequence[RequestOutput]) -> int:
        """The work of writing a whole reply, in the pool's units."""
        return size_of_whole(finals, 0)

    def whole(self, finals: Sequence[RequestOutput]) -> list[bytes]:
        """The reply to a request that does not stream. Raises HttpError if it was aborted."""
        [final] = finals
        return [msgspec.json.encode(self._part(final, final.outputs[0]))]

    async def stream(self, generation: Generation, pool: WorkPool) -> AsyncIterator[bytes]:
        """The events of a streamed reply, those of one step together."""
        async for data in written(generation, self, pool):
            yield data

    def size(self, update: Update) -> int:
        """The work of writing an update, in the pool's units."""
        return size_of(update.completion)

    def events(self, updates: Sequence[Update]) -> bytes:
        """The events for these updates."""
        parts = (self._part(update.output, update.completion) for update in updates)
        return b"".join(event(msgspec.json.encode(part)) for part in parts)

    def _part(self, output: RequestOutput, one: CompletionOutput) -> LlamaReply:
        self._num_tokens += len(one.token_ids)
        tokens = list(one.token_ids) if self.returns_tokens else []
        if one.finish_reason is None:
            return LlamaReply(content=one.text, tokens=tokens, stop=False)
        if one.finish_reason in ("abort", "error"):
            raise HttpError(Problem(500, output.error or "The server aborted this request."))
        is_word = isinstance(one.stop_reason, str)
        ended = "limit" if one.finish_reason == "length" else "word" if is_word else "eos"
        num_prompt, num_cached = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
        return LlamaReply(
            content=one.text,
            tokens=tokens,
            stop=True,
            model=self.model,
            tokens_predicted=self._num_tokens,
            tokens_evaluated=num_prompt,
            tokens_cached=num_cached,
            truncated=False,
            stop_type=ended,  # type: ignore[arg-type]
            stopping_word=str(one.stop_reason) if is_word else "",
            timings=self._timings(output, num_prompt - num_cached, num_cached),
        )

    def _timings(self, output: RequestOutput, num_computed: int, num_cached: int) -> Timings:
        timings = Timings(cache_n=num_cached, prompt_n=num_computed, predicted_n=self._num_tokens)
        if (stats := output.metrics) is not None:
            prompt_s = max(0.0, stats.first_token_ts - stats.scheduled_ts)
            predicted_s = max(0.0, stats.last_token_ts - stats.first_token_ts)
            timings.prompt_ms, timings.predicted_ms = 1000 * prompt_s, 1000 * predicted_s
            timings.prompt_per_second = num_computed / prompt_s if prompt_s else 0.0
            timings.predicted_per_second = (
                (self._num_tokens - 1) / predicted_s if predicted_s else 0.0
            )
        return timings
