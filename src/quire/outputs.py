"""What users get back: `RequestOutput` with its `CompletionOutput`s. vLLM's names throughout.

Made by the OutputProcessor; plain data that the engine never reads again.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """1 is the most likely token of the vocabulary."""
    decoded_token: str | None = None
    """The token as text; None without a tokenizer."""


LogprobsOnePosition = dict[int, Logprob]
SampleLogprobs = list[LogprobsOnePosition]
"""A dict for each output token: the chosen token first, then the best ones in order."""
PromptLogprobs = list["LogprobsOnePosition | None"]


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
    old.token_ids = [*old.token_ids, *new.token_ids]
    if new.logprobs:
        old.logprobs = [*(old.logprobs or []), *new.logprobs]
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
