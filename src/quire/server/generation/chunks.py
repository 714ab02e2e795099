"""`ChunkWriter`: the events of a stream in OpenAI's form, with the usage so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from quire.outputs import RequestOutput, RequestStateStats
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.server.generation.reply import ReplyHead
from quire.server.generation.usage import added, make_usage, metrics_of
from quire.server.http.event_stream import event
from quire.server.json_pieces import encoded
from quire.server.requests.fields import ChunkFields, Usage


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
