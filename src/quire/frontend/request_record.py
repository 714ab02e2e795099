"""`RequestRecord`: the state of one request in a front end, from its admission to its end.

Created and owned by the `OutputProcessor`, and read by observers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from quire.errors import QuireError
from quire.frontend.completion_state import CompletionState
from quire.frontend.kv_hand_off import answer
from quire.frontend.logprob_positions import Positions
from quire.frontend.pooling_output import pooling_output
from quire.outputs import (
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    PromptLogprobs,
    RequestOutput,
    RequestStateStats,
)
from quire.params import RequestOutputKind
from quire.protocol import PromptChunkLogprobs
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput

AnyOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]


def output_of(
    request: EngineInput,
    outputs: list[CompletionOutput],
    *,
    finished: bool,
    prompt_logprobs: PromptLogprobs | None = None,
    metrics: RequestStateStats | None = None,
    **more: Any,
) -> RequestOutput:
    """An output of a request. `more`: further fields of `RequestOutput`."""
    return RequestOutput(
        request.request_id,
        request.prompt,
        request.prompt_token_ids,
        prompt_logprobs,
        outputs,
        finished,
        metrics,
        request.options.lora,
        **more,
    )


class Sink(Protocol):
    """Receiver of a request's outputs. Nothing follows the last output or an error."""

    def put(self, output: AnyOutput) -> None:
        """Receive the next output."""

    def fail(self, error: QuireError) -> None:
        """Receive the error that ended the request; each sink gets its own copy."""


class RequestRecord:
    """One request of a user, with its `n` completions.

    Completions are created when the request begins, so an admitted request that is withdrawn costs
    little.
    """

    __slots__ = (
        "_is_delta", "completions", "error", "input", "is_final_only", "is_unmet",
        "num_cached_tokens", "num_open", "num_with_tokens", "parameter", "prompt_logprobs", "sink",
        "stream_interval",
    )  # fmt: skip

    def __init__(self, request: EngineInput, sink: Sink | None) -> None:
        self.input = request
        self.sink = sink
        """None: `process_outputs` returns the outputs, or no caller waits any longer."""
        kind = request.params.output_kind
        self.is_final_only = kind is RequestOutputKind.FINAL_ONLY
        """Whether there is only one output, at the end."""
        self._is_delta = kind is RequestOutputKind.DELTA
        self.error: str | None = None
        self.is_unmet = False
        """Whether the error is caused by the request itself."""
        self.parameter: str | None = None
        """The field that caused it; None: the request's constraints."""
        self.completions: list[CompletionState] = []
        self.num_open = 0
        """Number of completions that have begun and not ended."""
        self.num_with_tokens = 0
        """Number of completions with at least one token."""
        self.num_cached_tokens = 0
        """Cached prompt tokens of the completion that got the first token; the others also hit the
        blocks that it computed."""
        self.prompt_logprobs: Positions | None = None
        """Complete once the first token is there; a stream of deltas gets them only once."""
        self.stream_interval = 1

    @property
    def unmet_parameter(self) -> str:
        """The field that caused an error of the request itself."""
        if self.parameter is not None:
            return self.parameter
        has_grammar = self.input.params.structured_outputs is not None
        return "structured_outputs" if has_grammar else "allowed_token_ids"

    def begin(self, tokenizer: Tokenizer | None, stream_interval: int) -> None:
        """Create the completions; outputs may arrive from now on."""
        request = self.input
        params = request.params
        if params.prompt_logprobs is not None:
            first = request.prompt_token_ids[:1]
            self.prompt_logprobs = Positions(tokenizer, params, first)
            self.prompt_logprobs.add_nothing()
        self.stream_interval = max(stream_interval, params.stream_interval or 1)
        self.completions = [
            CompletionState(
                index,
                core.request_id,
                params,
                request.prompt_token_ids,
                tokenizer,
                request.arrival_time,
                request.num_virtual_tokens,
            )
            for index, core in enumerate(request.core_requests)
        ]
        self.num_open = len(self.completions)

    @property
    def num_core_requests(self) -> int:
        """Number of core requests, also before the completions exist."""
        return len(self.input.core_requests)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens, which all completions share."""
        return len(self.input.prompt_token_ids)

    def output(self, completion: CompletionState) -> AnyOutput | None:
        """The output to send after `completion` has grown; None: nothing yet."""
        if self.is_final_only:
            return None if self.num_open else self.request_output(self.completions)
        if not completion.is_due(self.stream_interval):
            return None
        return self._of([completion.snapshot(is_delta=self._is_delta)])

    def take_prompt_logprobs(self, piece: PromptChunkLogprobs) -> None:
        """Add the next piece, skipping positions that a preemption repeated."""
        if self.prompt_logprobs is None:
            return
        num_known = len(self.prompt_logprobs.entries)
        self.prompt_logprobs.add(piece.positions[max(0, num_known - piece.first) :])

    def request_output(self, completions: list[CompletionState]) -> AnyOutput:
        """An output with these completions."""
        if self.input.pooling_params is not None:
            output = pooling_output(self.input, completions, self.error)
            self.error = output.error
            return output
        return self._of([one.snapshot(is_delta=self._is_delta) for one in completions])

    def _of(self, outputs: list[CompletionOutput]) -> RequestOutput:
        request, first = self.input, self.completions[0]
        prompt, prompt_logprobs = self.prompt_logprobs, None
        if prompt is not None and len(prompt.entries) == self.num_prompt_tokens:
            prompt_logprobs = prompt.entries
            if self._is_delta:
                self.prompt_logprobs = None
        return output_of(
            request,
            outputs,
            finished=self.num_open == 0,
            prompt_logprobs=prompt_logprobs,
            metrics=first.stats if len(self.completions) == 1 else self.stats(),
            num_cached_tokens=self.num_cached_tokens,
            kv_transfer_params=(
                None if first.kv_name is None else answer(request.request_id, first.kv_name)
            ),
            error=self.error,
        )

    def stats(self) -> RequestStateStats:
        """Times of the first completion, with the counts of all completions."""
        first = self.completions[0].stats
        if len(self.completions) == 1:
            return first
        every = [completion.stats for completion in self.completions]
        return RequestStateStats(
            num_generation_tokens=sum(stats.num_generation_tokens for stats in every),
            num_preemptions=sum(stats.num_preemptions for stats in every),
            arrival_time=first.arrival_time,
            queued_ts=first.queued_ts,
            scheduled_ts=first.scheduled_ts,
            first_token_ts=first.first_token_ts,
            last_token_ts=max(stats.last_token_ts for stats in every),
            first_token_latency=first.first_token_latency,
        )
