"""`CompletionState`: converts the tokens of one output of a request to text and logprobs.

Owned by its `RequestRecord`, one per core request. It does not know the request's other outputs or
its consumers.
"""

from __future__ import annotations

from typing import cast

from quire.frontend.logprob_positions import Positions
from quire.outputs import CompletionOutput, RequestStateStats, SampleLogprobs
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.params import RequestOutputKind, SamplingParams
from quire.protocol import EngineCoreOutput, PooledRows, TokenLogprobs
from quire.tokenizer import IncrementalDetokenizer, StopChecker, Tokenizer, detokenizer_of

_TOKENS_AT_ONCE = 64
"""Maximum number of tokens of a lazy output that are detokenized at once."""


class CompletionState:
    """Tokens, text and log-probabilities of one output so far.

    Without stop strings, a FINAL_ONLY output is detokenized in batches of tokens, because its text
    is not read before the end; not all at once, so that the last step stays short.
    """

    __slots__ = (
        "_cumulative_logprob", "_detokenizer", "_logprobs", "_num_sent_tokens",
        "_num_tokens_in_text", "_num_virtual_tokens", "_params", "_stop", "_text", "finish_reason",
        "index", "is_lazy",
        "kv_name", "loaded_tokens", "num_cached_tokens", "pooled", "prediction", "request_id",
        "spec_decode_metrics", "stats",
        "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        request_id: str,
        params: SamplingParams,
        prompt_token_ids: list[int],
        tokenizer: Tokenizer | None,
        arrival_time: float,
        num_virtual_tokens: int = 0,
    ) -> None:
        self._num_virtual_tokens = num_virtual_tokens
        self.index = index
        self.request_id = request_id
        """Id of the core request."""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_cached_tokens = 0
        self.loaded_tokens: dict[str, int] = {}
        """Number of cached tokens whose K/V was loaded from the KV store, by tier."""
        self.kv_name: str | None = None
        """Name of the prompt's K/V, for another engine that continues the request."""
        self.spec_decode_metrics: RequestSpecDecodeMetrics | None = None
        self.prediction: PredictionCounts | None = None
        """Counts of draft tokens, as in `EngineCoreOutput`."""
        self.pooled: PooledRows | None = None
        """The result of a pooling request."""
        self.stats = RequestStateStats(arrival_time=arrival_time, queued_ts=arrival_time)
        self._params = params
        self._text = ""
        """The whole text; for a stream of deltas, the text not sent yet."""
        self._num_tokens_in_text = 0
        """Number of tokens of a lazy output that are already in the text."""
        self._num_sent_tokens = 0
        self._logprobs = None if params.num_logprobs is None else Positions(tokenizer, params)
        self._cumulative_logprob = None if params.num_logprobs is None else 0.0
        self._detokenizer: IncrementalDetokenizer | None = None
        self._stop: StopChecker | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = detokenizer_of(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                kept_token_ids=params.kept_token_ids,
            )
            if params.stop:
                self._stop = StopChecker(
                    params.stop, include_stop_str_in_output=params.include_stop_str_in_output
                )
        is_final_only = params.output_kind is RequestOutputKind.FINAL_ONLY
        self.is_lazy = is_final_only and self._stop is None
        """True if no text is needed before the end."""

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete."""
        return self.finish_reason is not None

    def take(self, output: EngineCoreOutput, timestamp: float) -> bool:
        """Add the result of a step. Returns True if a stop string ended the output here, so that
        the core request must be aborted."""
        stats, new = self.stats, output.new_token_ids
        self.pooled = output.pooled or self.pooled
        if not self.token_ids and (new or output.pooled is not None):
            stats.first_token_ts = timestamp
            stats.first_token_latency = timestamp - stats.arrival_time
            stats.scheduled_ts = output.scheduled_time or timestamp
            self.num_cached_tokens = max(0, output.num_cached_tokens - self._num_virtual_tokens)
            self.loaded_tokens = output.loaded_tokens
        stats.last_token_ts = timestamp
        stats.num_preemptions = output.num_preemptions
        is_stopped_by_string = False
        if self.is_lazy:
            self.token_ids += new
            if len(self.token_ids) - self._num_tokens_in_text > _TOKENS_AT_ONCE:
                self._make_text(len(self.token_ids) - 1)  # the last one may be a stop token
        else:
            is_stopped_by_string = self._detokenize(new, output.finish_reason == "stop")
        stats.num_generation_tokens = len(self.token_ids)
        if output.logprobs is not None:
            self._take_logprobs(output.logprobs)
        if is_stopped_by_string:
            self.finish_reason = "stop"
            self.stop_reason = self._stop.matched if self._stop else None
            return output.finish_reason is None
        if output.finish_reason is not None:
            self.kv_name = output.kv_name
            self.spec_decode_metrics = output.spec_decode_metrics
            self.prediction = output.prediction
            self.finish(output.finish_reason, output.stop_reason)
        return False

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        """Finish the output, and add the text that was held back."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self._detokenizer is None:
            return
        if self.is_lazy:
            is_hidden = reason == "stop" and not self._params.include_stop_str_in_output
            self._make_text(len(self.token_ids) - is_hidden)
        tail = self._detokenizer.finish()
        if self._stop is not None:
            tail = self._stop.feed(tail, may_stop=False) + self._stop.finish()
        self._text += tail

    def is_due(self, stream_interval: int) -> bool:
        """Whether to send an output now; always True for the first and the last one."""
        num_sent = self._num_sent_tokens
        is_long = len(self.token_ids) - num_sent >= stream_interval
        return is_long or not num_sent or self.finish_reason is not None

    def snapshot(self, *, is_delta: bool) -> CompletionOutput:
        """The output so far; with `is_delta`, the part since the last snapshot."""
        token_ids, text = self.token_ids, self._text
        logprobs = None if self._logprobs is None else cast(SampleLogprobs, self._logprobs.entries)
        if is_delta:
            begin = self._num_sent_tokens
            token_ids, self._text = token_ids[begin:], ""
            logprobs = None if logprobs is None else logprobs[begin:]
        elif self.finish_reason is None:
            token_ids = token_ids.copy()
            logprobs = None if logprobs is None else logprobs.copy()
        self._num_sent_tokens = len(self.token_ids)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            spec_decode_metrics=self.spec_decode_metrics,
            prediction=self.prediction,
        )

    def _make_text(self, num_tokens: int) -> None:
        """Detokenize the first `num_tokens` tokens of a lazy output."""
        if self._detokenizer is not None:
            self._text += self._detokenizer.push(
                self.token_ids[self._num_tokens_in_text : num_tokens]
            )
        self._num_tokens_in_text = num_tokens

    def _detokenize(self, new: list[int], ends_with_stop_token: bool) -> bool:
        """Append tokens and their text, up to a stop string. Returns True if one was found.

        The text of a stop token is omitted, unless stop strings are to be included.
        """
        if self._detokenizer is None:
            self.token_ids += new
            return False
        num_left = len(new)
        for token_id in new:
            self.token_ids.append(token_id)
            num_left -= 1
            is_stop_token = ends_with_stop_token and not num_left
            if is_stop_token and not self._params.include_stop_str_in_output:
                break
            text = self._detokenizer.push((token_id,))
            if self._stop is None:
                self._text += text
                continue
            may_stop = len(self.token_ids) > self._params.min_tokens
            self._text += self._stop.feed(text, may_stop=may_stop)
            if self._stop.matched is not None:
                return True
        return False

    def _take_logprobs(self, positions: list[TokenLogprobs]) -> None:
        if self._logprobs is None or self._cumulative_logprob is None:
            return
        new = positions[: len(self.token_ids) - len(self._logprobs.entries)]
        for found in new:
            self._cumulative_logprob += found.logprobs[0]
        self._logprobs.add(new)
