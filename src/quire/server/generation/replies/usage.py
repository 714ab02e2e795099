"""Token counts and timings of a reply, from the engine's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.outputs import RequestOutput, RequestStateStats
from quire.server.generation.reply_fields import (
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
) -> Usage:
    """The counts as OpenAI shapes them. `reasoning_tokens`: None for a model that does not
    reason."""
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )
    if reasoning_tokens is not None:
        usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return usage


def usage_of(finals: Iterable[RequestOutput], reasoning_tokens: int | None = None) -> Usage:
    """The usage of whole outputs; a prompt counts once, whatever its `n`."""
    prompt = completion = cached = 0
    for final in finals:
        prompt += len(final.prompt_token_ids or [])
        completion += sum(len(one.token_ids) for one in final.outputs)
        cached += final.num_cached_tokens or 0
    return make_usage(prompt, completion, cached, reasoning_tokens)


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

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Records an output's prompt."""
        self.prompt_tokens[prompt_index] = len(output.prompt_token_ids or [])
        self.cached_tokens[prompt_index] = output.num_cached_tokens or 0
        self.stats = output.metrics or self.stats

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
        )


def added(counts: Iterable[int | None]) -> int | None:
    """The sum of counts; None if nothing was counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


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
