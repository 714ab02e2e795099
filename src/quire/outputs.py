"""What users get back: `RequestOutput` with its `CompletionOutput`s. vLLM's names throughout.

Made by the OutputProcessor; plain data that the engine never reads again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """1 is the most likely token of the vocabulary."""
    decoded_token: str | None = None
    """The token as text; None without a tokenizer."""


LogprobsOnePosition = dict[int, Logprob]


class FlatLogprobs(Sequence["LogprobsOnePosition | None"]):
    """The log-probabilities of some positions in flat arrays, 16 bytes for each.

    Reads like a list of dicts, which it makes anew each time that one is asked for. Asked for with
    `SamplingParams.flat_logprobs`: a million `Logprob` objects take 200 MB, and every full garbage
    collection walks through them.
    """

    __slots__ = ("_decode", "end_indices", "logprobs", "ranks", "token_ids")

    def __init__(self, decode: Callable[[int], str] | None = None) -> None:
        """`decode` gives a token's text; None: tokens have none."""
        self.end_indices = array("q")
        """Where each position ends in the arrays that follow."""
        self.token_ids = array("i")
        self.logprobs = array("d")
        self.ranks = array("i")
        self._decode = decode

    def append_fast(
        self, token_ids: Iterable[int], logprobs: Iterable[float], ranks: Iterable[int]
    ) -> None:
        """Adds a position; with nothing in it, one that has no log-probabilities (None)."""
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.end_indices.append(len(self.token_ids))

    def extend(self, others: FlatLogprobs) -> None:
        """Adds the positions of another one."""
        offset = len(self.token_ids)
        self.token_ids += others.token_ids
        self.logprobs += others.logprobs
        self.ranks += others.ranks
        self.end_indices.extend([offset + end for end in others.end_indices])

    def copy(self) -> FlatLogprobs:
        """Another one with the same positions."""
        return self[:]

    def span(self, position: int) -> slice:
        """Where a position, counted from 0, lies in the arrays."""
        begin = self.end_indices[position - 1] if position else 0
        return slice(begin, self.end_indices[position])

    def __len__(self) -> int:
        return len(self.end_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition | None: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs | None:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if not -len(self) <= index < len(self):
            raise IndexError(f"position {index} of {len(self)}")
        span = self.span(index % len(self))
        entries = zip(self.token_ids[span], self.logprobs[span], self.ranks[span], strict=True)
        return {
            token_id: Logprob(logprob, rank, self._decode(token_id) if self._decode else None)
            for token_id, logprob, rank in entries
        } or None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _part(self, begin: int, end: int, step: int) -> FlatLogprobs:
        part = FlatLogprobs(self._decode)
        if step == 1 and begin < end:
            span = slice(self.span(begin).start, self.end_indices[end - 1])
            part.token_ids, part.logprobs = self.token_ids[span], self.logprobs[span]
            part.ranks = self.ranks[span]
            ends = self.end_indices[begin:end]
            part.end_indices = array("q", [place - span.start for place in ends])
            return part
        for position in range(begin, end, step):
            span = self.span(position)
            part.append_fast(self.token_ids[span], self.logprobs[span], self.ranks[span])
        return part


SampleLogprobs = list[LogprobsOnePosition] | FlatLogprobs
"""Of each output token: the chosen token first, then the best ones in order."""
PromptLogprobs = list["LogprobsOnePosition | None"] | FlatLogprobs


@dataclass(slots=True)
class RequestStateStats:
    """Times and counts of one request. `arrival_time` is wall-clock seconds since the epoch;
    the `_ts` fields are too, so that they can be compared with it."""

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from arrival to the first token."""


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` outputs of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum of the chosen tokens' log-probabilities; None unless logprobs were asked for."""
    logprobs: SampleLogprobs | None
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while it is running."""
    stop_reason: int | str | None = None
    """The stop string or token that ended it; None for end-of-sequence and all other ends."""

    def finished(self) -> bool:
        """Whether this output is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The outputs of one request, so far or final."""

    request_id: str
    prompt: str | None
    """None if the prompt was given as token ids."""
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    """A dict for each prompt token: the token itself first, then the best ones in order; None
    for the first, which nothing precedes. In a stream of deltas: with the first one alone."""
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: None = field(default=None, repr=False)
    encoder_prompt: str | None = field(default=None, repr=False)
    encoder_prompt_token_ids: list[int] | None = field(default=None, repr=False)
    num_cached_tokens: int | None = None
    """Prompt tokens that a prefix hit saved."""
    error: str | None = None
    """Why, when an output's `finish_reason` is `error`."""

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Merges a later output of the same request into this one.

        `aggregate` appends (both are deltas); otherwise the later one replaces.
        """
        self.finished |= next_output.finished
        self.metrics = next_output.metrics or self.metrics
        self.prompt_logprobs = next_output.prompt_logprobs or self.prompt_logprobs
        self.error = next_output.error or self.error
        for new in next_output.outputs:
            for position, old in enumerate(self.outputs):
                if old.index != new.index:
                    continue
                if aggregate:
                    _extend(old, new)
                else:
                    self.outputs[position] = new
                break
            else:
                self.outputs.append(new)


def _extend(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids += new.token_ids  # a delta's lists are its own
    if isinstance(old.logprobs, FlatLogprobs) and isinstance(new.logprobs, FlatLogprobs):
        old.logprobs.extend(new.logprobs)
    elif isinstance(old.logprobs, list) and isinstance(new.logprobs, list):
        old.logprobs += new.logprobs
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
