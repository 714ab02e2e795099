"""llama-server's form of replies: one JSON object, or an event for each step."""

from __future__ import annotations

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.apis.llama_server.schema import LlamaReply, Timings
from quire.server.generation.portions import StepWriter, check_end
from quire.server.http.event_stream import PLAIN_FORM, event

LLAMA_FORM = PLAIN_FORM
"""The last event says `"stop": true`; nothing follows it."""


class LlamaWriter(StepWriter):
    """Writes the reply to one request."""

    def __init__(self, model: str, returns_tokens: bool) -> None:
        self._model = model
        self._returns_tokens = returns_tokens
        self._num_tokens = 0
        """Tokens of the reply so far."""

    def line(self, data: bytes) -> bytes:
        return event(data)

    def part(self, output: RequestOutput, one: CompletionOutput) -> LlamaReply:
        self._num_tokens += len(one.token_ids)
        tokens = list(one.token_ids) if self._returns_tokens else []
        if one.finish_reason is None:
            return LlamaReply(content=one.text, tokens=tokens, stop=False)
        check_end(output, one)
        is_word = isinstance(one.stop_reason, str)
        ended = "limit" if one.finish_reason == "length" else "word" if is_word else "eos"
        num_prompt, num_cached = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
        return LlamaReply(
            content=one.text,
            tokens=tokens,
            stop=True,
            model=self._model,
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
