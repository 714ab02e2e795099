"""The token counts and timings of a reply, from the engine's outputs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from quire.outputs import RequestOutput, RequestStateStats
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.server.requests.fields import (
    CompletionTokensDetails,
    PromptTokensDetails,
    RequestMetrics,
    Usage,
)


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
