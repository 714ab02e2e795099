"""`OutputProcessor`: from what the core's steps give to the `RequestOutput`s that users see.

Called by `LLMEngine` and the async engine, on the front end's thread. Knows text, streams and
the `n` outputs of a request; nothing of scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quire.frontend.completion_state import CompletionState
from quire.frontend.input_processor import EngineInput
from quire.frontend.positions import Positions
from quire.outputs import RequestOutput, RequestStateStats
from quire.params import RequestOutputKind
from quire.protocol import EngineCoreOutputs, PromptLogprobs
from quire.tokenizer import Tokenizer

Sink = Callable[[RequestOutput], None]


@dataclass(slots=True)
class ProcessedOutputs:
    """What came of a step."""

    request_outputs: list[RequestOutput] = field(default_factory=list)
    """Of the requests that were added without a sink."""
    aborts: list[str] = field(default_factory=list)
    """Core requests that a stop string ended: the core must be told."""
    num_prompt_tokens: int = 0
    """Prompt tokens computed (not hit) for requests that gave their first token."""
    num_generation_tokens: int = 0


class _RequestState:
    """One request of a user, with its `n` completions."""

    __slots__ = (
        "completions", "core_ids", "error", "input", "num_open", "prompt_logprobs", "sink",
        "stream_interval",
    )  # fmt: skip

    def __init__(
        self,
        request: EngineInput,
        tokenizer: Tokenizer | None,
        sink: Sink | None,
        stream_interval: int,
    ) -> None:
        self.input = request
        self.sink = sink
        self.error: str | None = None
        self.prompt_logprobs: Positions | None = None
        """Of the whole prompt once the first token is there; a stream of deltas gets them once."""
        if request.params.prompt_logprobs is not None:
            self.prompt_logprobs = Positions(tokenizer, request.params)
            self.prompt_logprobs.add_nothing()
        self.stream_interval = max(stream_interval, request.params.stream_interval or 1)
        self.core_ids = [core.request_id for core in request.core_requests]
        self.completions = [
            CompletionState(
                index, request.params, request.prompt_token_ids, tokenizer, request.arrival_time
            )
            for index in range(len(self.core_ids))
        ]
        self.num_open = len(self.completions)

    def output(self, completion: CompletionState) -> RequestOutput | None:
        """What there is to tell now that `completion` has grown; None: nothing yet."""
        kind = self.input.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY:
            return None if self.num_open else self.request_output(self.completions)
        if not completion.is_due(self.stream_interval):
            return None
        return self.request_output([completion])

    def take_prompt_logprobs(self, piece: PromptLogprobs) -> None:
        """The next piece, or one that a preemption repeats."""
        if self.prompt_logprobs is None:
            return
        num_held = len(self.prompt_logprobs.held)
        self.prompt_logprobs.add(piece.positions[max(0, num_held - piece.first) :])

    def request_output(self, completions: list[CompletionState]) -> RequestOutput:
        """The request's state, with these of its completions."""
        kind = self.input.params.output_kind
        prompt_logprobs = None if self.prompt_logprobs is None else self.prompt_logprobs.held
        if len(prompt_logprobs or ()) < len(self.input.prompt_token_ids):
            prompt_logprobs = None
        elif kind is RequestOutputKind.DELTA:
            self.prompt_logprobs = None
        return RequestOutput(
            request_id=self.input.request_id,
            prompt=self.input.prompt,
            prompt_token_ids=self.input.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[completion.snapshot(kind) for completion in completions],
            finished=self.num_open == 0,
            metrics=_joined_stats(self.completions),
            num_cached_tokens=self.completions[0].num_cached_tokens,
            error=self.error,
        )


class OutputProcessor:
    """The requests that somebody waits for. One thread at a time."""

    def __init__(self, tokenizer: Tokenizer | None, stream_interval: int = 1) -> None:
        self.tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._by_core_id: dict[str, tuple[_RequestState, CompletionState]] = {}
        self._by_user_id: dict[str, list[_RequestState]] = {}

    def add_request(self, request: EngineInput, sink: Sink | None = None) -> None:
        """Begins to wait for a request's outputs; they go to `sink` if there is one."""
        state = _RequestState(request, self.tokenizer, sink, self._stream_interval)
        for core_id, completion in zip(state.core_ids, state.completions, strict=True):
            self._by_core_id[core_id] = (state, completion)
        self._by_user_id.setdefault(request.request_id, []).append(state)

    def has_unfinished_requests(self) -> bool:
        """Whether anybody waits."""
        return bool(self._by_user_id)

    def get_num_unfinished_requests(self) -> int:
        """Core requests waited for: a request of `n` outputs counts `n` times."""
        return len(self._by_core_id)

    def request_ids(self) -> list[str]:
        """The users' ids of all requests waited for."""
        return list(self._by_user_id)

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Takes in a step's outputs. Those of unknown requests (aborted ones) are dropped."""
        done = ProcessedOutputs()
        by_core_id, timestamp = self._by_core_id, outputs.timestamp
        for output in outputs.outputs:
            held = by_core_id.get(output.request_id)
            if held is None:
                continue
            state, completion = held
            if output.prompt_logprobs is not None:
                state.take_prompt_logprobs(output.prompt_logprobs)
            if not output.new_token_ids and output.finish_reason is None:
                continue
            if not completion.token_ids and output.new_token_ids:
                num_computed = len(state.input.prompt_token_ids) - output.num_cached_tokens
                done.num_prompt_tokens += num_computed
            done.num_generation_tokens += len(output.new_token_ids)
            if completion.take(output, timestamp):
                done.aborts.append(output.request_id)
            if completion.is_finished:
                state.error = output.error or state.error
                self._close(output.request_id, state)
            elif completion.is_lazy:
                continue
            request_output = state.output(completion)
            if request_output is None:
                continue
            if state.sink is not None:
                state.sink(request_output)
            else:
                done.request_outputs.append(request_output)
        return done

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Stops waiting for these requests of users; returns the core requests to abort.

        Whoever has a sink gets a last output, with finish reason `abort`.
        """
        core_ids: list[str] = []
        for request_id in request_ids:
            for state in self._by_user_id.get(request_id, [])[:]:
                core_ids += self._abort(state)
        return core_ids

    def _abort(self, state: _RequestState) -> list[str]:
        core_ids = [core_id for core_id in state.core_ids if core_id in self._by_core_id]
        aborted = [self._by_core_id[core_id][1] for core_id in core_ids]
        for core_id, completion in zip(core_ids, aborted, strict=True):
            completion.finish("abort")
            self._close(core_id, state)
        if state.sink is not None:
            is_final_only = state.input.params.output_kind is RequestOutputKind.FINAL_ONLY
            state.sink(state.request_output(state.completions if is_final_only else aborted))
        return core_ids

    def _close(self, core_id: str, state: _RequestState) -> None:
        del self._by_core_id[core_id]
        state.num_open -= 1
        if state.num_open:
            return
        request_id = state.input.request_id
        others = self._by_user_id[request_id]
        others.remove(state)
        if not others:
            del self._by_user_id[request_id]


def _joined_stats(completions: list[CompletionState]) -> RequestStateStats:
    """The first completion's times with everyone's counts."""
    first = completions[0].stats
    if len(completions) == 1:
        return first
    every = [completion.stats for completion in completions]
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
