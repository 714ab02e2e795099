"""`ReplyWriter` and `ChunkWriter`, which the writers of several APIs share; and the token counts
and timings of a reply, from the engine's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from quire.outputs import CompletionOutput, RequestOutput, RequestStateStats
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.portions import ReplyHead, Writer
from quire.server.http.event_stream import event
from quire.server.requests.fields import (
    ChunkFields,
    CompletionTokensDetails,
    PromptTokensDetails,
    RequestMetrics,
    Usage,
    WholeReplyFields,
)
from quire.server.work_pool import JsonList, encoded
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.requests.prompts import PreparedPrompt
    from quire.server.requests.request import ReplyOptions


def make_usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    reasoning_tokens: int | None = None,
    predictions: Iterable[PredictionCounts] = (),
) -> Usage:
    """The counts as OpenAI shapes them. `reasoning_tokens`: None for a model that does not
    reason. `predictions`: of choices whose request has a prediction."""
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )
    counts = list(predictions)
    if reasoning_tokens is not None or counts:
        details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens or 0)
        if counts:
            details.accepted_prediction_tokens = sum(one.num_accepted for one in counts)
            details.rejected_prediction_tokens = sum(one.num_rejected for one in counts)
        usage.completion_tokens_details = details
    return usage


def usage_of(finals: Iterable[RequestOutput], reasoning_tokens: int | None = None) -> Usage:
    """The usage of whole outputs; a prompt counts once, whatever its `n`."""
    prompt = completion = cached = 0
    predictions: list[PredictionCounts] = []
    for final in finals:
        prompt += len(final.prompt_token_ids or [])
        completion += sum(len(one.token_ids) for one in final.outputs)
        cached += final.num_cached_tokens or 0
        predictions += [one.prediction for one in final.outputs if one.prediction is not None]
    return make_usage(prompt, completion, cached, reasoning_tokens, predictions)


@dataclass(slots=True)
class UsageCounter:
    """The usage of a stream while it grows."""

    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    completion_tokens: dict[int, int] = field(default_factory=dict)
    """Keys are indices of choices; those of the fields above are indices of prompts."""
    reasoning_tokens: dict[int, int | None] = field(default_factory=dict)
    """By index of the choice, as counted so far."""
    stats: RequestStateStats | None = None
    predictions: list[PredictionCounts] = field(default_factory=list)
    """Counts of finished choices whose request has a prediction."""
    drafts: RequestSpecDecodeMetrics | None = None
    """Draft tokens of the choice that finished last."""

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Records an output's prompt."""
        self.prompt_tokens[prompt_index] = len(output.prompt_token_ids or [])
        self.cached_tokens[prompt_index] = output.num_cached_tokens or 0
        self.stats = output.metrics or self.stats
        for one in output.outputs:
            self.drafts = one.spec_decode_metrics or self.drafts
            if one.prediction is not None:
                self.predictions.append(one.prediction)

    def add(self, choice: int, num_tokens: int, reasoning_tokens: int | None = None) -> None:
        """Counts new tokens of a choice, and sets its reasoning tokens so far."""
        self.completion_tokens[choice] = self.completion_tokens.get(choice, 0) + num_tokens
        self.reasoning_tokens[choice] = reasoning_tokens

    def of_choice(self, prompt_index: int, choice: int) -> Usage:
        """The usage so far as one choice sees it."""
        return make_usage(
            self.prompt_tokens.get(prompt_index, 0),
            self.completion_tokens.get(choice, 0),
            self.cached_tokens.get(prompt_index, 0),
            self.reasoning_tokens.get(choice),
        )

    def total(self) -> Usage:
        """The usage of everything so far."""
        return make_usage(
            sum(self.prompt_tokens.values()),
            sum(self.completion_tokens.values()),
            sum(self.cached_tokens.values()),
            added(self.reasoning_tokens.values()),
            self.predictions,
        )


def added(counts: Iterable[int | None]) -> int | None:
    """The sum of counts; None if nothing was counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def metrics_of(
    stats: RequestStateStats | None,
    drafts: RequestSpecDecodeMetrics | None,
    *,
    has_timings: bool,
    num_choices: int,
) -> RequestMetrics | UnsetType:
    """The timings of a request if `has_timings`, and the counts of its draft tokens if there are
    any and they are those of the only choice."""
    if drafts is None or num_choices != 1:
        return timings(stats) if has_timings else UNSET
    metrics = timings(stats) if has_timings else RequestMetrics()
    metrics.speculative_decoding = drafts.to_dict()
    return metrics


def timings(stats: RequestStateStats | None) -> RequestMetrics:
    """A request's timings in milliseconds; fields stay null where nothing was generated."""
    if stats is None or not stats.num_generation_tokens:
        return RequestMetrics()
    generation_s = max(0.0, stats.last_token_ts - stats.first_token_ts)
    num_gaps = stats.num_generation_tokens - 1
    total_s = max(1e-9, stats.last_token_ts - stats.scheduled_ts)
    return RequestMetrics(
        time_to_first_token_ms=_ms(stats.first_token_ts - stats.arrival_time),
        generation_time_ms=_ms(generation_s),
        queue_time_ms=_ms(stats.scheduled_ts - stats.arrival_time),
        mean_itl_ms=_ms(generation_s / num_gaps) if num_gaps else None,
        tokens_per_second=round(stats.num_generation_tokens / total_s, 3),
    )


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)


Chunk = TypeVar("Chunk", bound=ChunkFields)


class ChunkWriter(Generic[Chunk]):
    """Encodes chunks, and counts the usage that they report."""

    def __init__(self, kind: type[Chunk], head: ReplyHead) -> None:
        self._kind: type[Chunk] = kind
        self._head = head
        self._counter = UsageCounter()

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Counts the prompt's tokens of an output. Call it before the output's chunks."""
        self._counter.see(prompt_index, output)

    def count(self, choice: int, num_tokens: int, reasoning_tokens: int | None = None) -> None:
        """Counts new tokens of a choice, and its reasoning tokens so far."""
        self._counter.add(choice, num_tokens, reasoning_tokens)

    def chunk(self, prompt_index: int, choice: Any, **fields: Any) -> bytes:
        """One choice's update, with the usage so far if that was asked for."""
        chunk = self._head.begin(self._kind, choices=[choice], **fields)
        if self._head.continuous_usage:
            chunk.usage = self._counter.of_choice(prompt_index, choice.index)
        elif self._head.include_usage:
            chunk.usage = None
        return event(b"".join(encoded(chunk)))

    def last(self, **fields: Any) -> bytes:
        """The last chunk, which has no choices; empty if there is none."""
        head, counter = self._head, self._counter
        metrics = metrics_of(
            counter.stats,
            counter.drafts,
            has_timings=head.has_metrics,
            num_choices=len(counter.completion_tokens),
        )
        if not head.include_usage and metrics is msgspec.UNSET:
            return b""
        chunk = head.begin(self._kind, choices=[], **fields)
        chunk.usage = counter.total() if head.include_usage else None
        chunk.metrics = metrics
        return event(msgspec.json.encode(chunk))


Whole = TypeVar("Whole", bound=WholeReplyFields)


class ReplyWriter(Writer, Generic[Chunk]):
    """Shapes the replies to one request, whole or in chunks.

    There is one chunk for each step of a choice, even without text: a client that counts chunks
    counts steps, and a token's log-probabilities come with it.
    """

    def __init__(
        self,
        options: ReplyOptions,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
        *,
        num_top: int,
        chunk_kind: type[Chunk],
    ) -> None:
        """`num_top`: log-probabilities of the best tokens at each position."""
        self._options = options
        self._head = head
        self._prompts = prompts
        self._n = options.n
        self._wants_ids = options.has_token_ids
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._chunks: ChunkWriter[Chunk] = ChunkWriter(chunk_kind, head)

    @cached_property
    def _logprobs(self) -> LogprobsWriter:
        """Made for replies that have log-probabilities."""
        return LogprobsWriter(self._tokenizer, self._num_top, self._head.tokens_as_ids)

    def last(self) -> bytes:
        """The last chunk, with usage and timings; empty if the request does not ask for it."""
        return self._chunks.last()

    def reasoning_tokens(self) -> int | None:
        """Reasoning tokens of the written reply; None for a model that does not reason."""
        return None

    def _response(
        self, kind: type[Whole], choices: JsonList, finals: Sequence[RequestOutput]
    ) -> Whole:
        usage = usage_of(finals, self.reasoning_tokens())
        response = self._head.begin(kind, choices=choices.as_field(), usage=usage)
        response.metrics = metrics_of(
            finals[-1].metrics,
            finals[-1].outputs[0].spec_decode_metrics,
            has_timings=self._head.has_metrics,
            num_choices=sum(len(final.outputs) for final in finals),
        )
        response.kv_transfer_params = finals[0].kv_transfer_params if len(finals) == 1 else None
        return response

    def _end_of(self, one: CompletionOutput) -> dict[str, Any]:
        """The fields of a choice that say how it ended, and its token ids."""
        return {
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": JsonList(one.token_ids).as_field() if self._wants_ids else None,
        }
