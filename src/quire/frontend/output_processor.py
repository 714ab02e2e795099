"""`OutputProcessor`: the front end's requests, and the conversion of step outputs to their outputs.

Called by `LLMEngine` and `AsyncLLM`, on the front end's thread. Owns the record of each request and
notifies observers of its events. Does not depend on scheduling.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quire.errors import QuireError
from quire.frontend.arguments import EngineInput
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.request_record import AnyOutput, RequestRecord, Sink
from quire.protocol import EngineCoreOutputs
from quire.system import clock
from quire.system.hooks import overriding
from quire.tokenizer import Tokenizer


@dataclass(slots=True)
class ProcessedOutputs:
    """The result of a step."""

    request_outputs: list[AnyOutput] = field(default_factory=list)
    """Outputs of requests without a sink."""
    aborts: list[str] = field(default_factory=list)
    """Core requests that ended by a stop string; the caller must abort them in the core."""


class OutputProcessor:
    """All requests that have not ended. Used by one thread at a time.

    Invariant: a request is stored from `admit` until it is withdrawn or its last completion ends. A
    completion is stored from `begin` until it ends, under the id of its core request. That id is
    unique; users' ids need not be.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stream_interval: int = 1,
        observers: Sequence[RequestObserver] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._observers = overriding(RequestObserver, observers)
        self._admitted: set[RequestRecord] = set()
        """Admitted requests that have not begun."""
        self._open: dict[str, tuple[RequestRecord, CompletionState]] = {}

    def admit(self, request: EngineInput, sink: Sink | None = None) -> RequestRecord:
        """Create the record of a request; the caller must begin or withdraw it. Outputs go to
        `sink`, if given."""
        record = RequestRecord(request, sink)
        self._admitted.add(record)
        for observer in self._observers["on_admitted"]:
            observer.on_admitted(record)
        return record

    def withdraw(self, record: RequestRecord) -> None:
        """Remove an admitted request that will not begin."""
        self._admitted.remove(record)
        for observer in self._observers["on_withdrawn"]:
            observer.on_withdrawn(record)

    def begin(self, record: RequestRecord) -> None:
        """Begin an admitted request: its outputs are expected from now on."""
        self._admitted.remove(record)
        record.begin(self.tokenizer, self._stream_interval)
        for completion in record.completions:
            self._open[completion.request_id] = (record, completion)
        for observer in self._observers["on_handed_over"]:
            observer.on_handed_over(record)

    def add_request(self, request: EngineInput, sink: Sink | None = None) -> None:
        """Admit and begin a request."""
        self.begin(self.admit(request, sink))

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._open or self._admitted)

    def get_num_unfinished_requests(self) -> int:
        """Number of core requests in flight: a request of `n` outputs counts `n` times."""
        return len(self._open)

    def records(self) -> list[RequestRecord]:
        """All requests: begun ones, the oldest first, then those that have not begun."""
        begun = dict.fromkeys(record for record, _ in self._open.values())
        return [*begun, *self._admitted]

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Process the outputs of a step. Outputs of unknown (aborted) requests are dropped."""
        done, tokens = ProcessedOutputs(), StepTokens()
        now, opened, num_tokens, gaps_s = outputs.timestamp, self._open, 0, tokens.gaps_s
        for output in outputs.outputs:
            found = opened.get(output.request_id)
            if found is None:
                continue
            record, completion = found
            if output.prompt_logprobs is not None:
                record.take_prompt_logprobs(output.prompt_logprobs)
            num_new = len(output.new_token_ids)
            if not num_new and output.finish_reason is None:
                continue
            is_first, last = not completion.token_ids, completion.stats.last_token_ts
            if completion.take(output, now):
                done.aborts.append(output.request_id)
            num_tokens += num_new
            if (num_new or output.pooled is not None) and is_first:
                self._first_token(record, completion)
            elif num_new:
                gaps_s.append(now - last)
            if completion.finish_reason is not None:
                record.error = output.error or record.error
                record.is_unmet |= output.is_unmet
                record.parameter = output.parameter
                self._close(record, completion, now)
            elif completion.is_lazy:
                continue
            request_output = record.output(completion)
            if request_output is None:
                continue
            if record.sink is None:
                done.request_outputs.append(request_output)
            else:
                _put(record, record.sink, request_output)
        tokens.num_new = num_tokens
        for observer in self._observers["on_step"]:
            observer.on_step(tokens, outputs.stats, now)
        return done

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Abort the requests with these user ids; returns the core requests to abort.

        Sinks receive a last output, with finish reason `abort`.
        """
        wanted = set(request_ids)
        return self.abort([one for one in self.records() if one.input.request_id in wanted])

    def abort(self, records: Iterable[RequestRecord]) -> list[str]:
        """Abort these requests, except those that have ended or not begun; see `abort_requests`."""
        now = clock.now()
        return [core_id for record in records for core_id in self._abort(record, now)]

    def fail(self, error: QuireError, core_ids: Iterable[str] | None = None) -> list[str]:
        """End all requests, or those with these core requests; each sink receives its own copy of
        the error. Returns the core requests to abort."""
        if core_ids is None:
            records = self.records()
        else:
            opened = self._open
            records = [*dict.fromkeys(opened[one][0] for one in core_ids if one in opened)]
        sinks = [record.sink for record in records]
        aborted = self.abandon(records)
        for sink in sinks:
            if sink is not None:
                sink.fail(copy.copy(error))
        return aborted

    def abandon(self, records: Iterable[RequestRecord]) -> list[str]:
        """End these requests, begun or not, without notifying their sinks. Returns the core
        requests to abort."""
        core_ids = []
        for record in records:
            record.sink = None
            if record in self._admitted:
                self.withdraw(record)
            core_ids += self.abort([record])
        return core_ids

    def _first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        record.num_with_tokens += 1
        if record.num_with_tokens == 1:
            record.num_cached_tokens = completion.num_cached_tokens
        for observer in self._observers["on_first_token"]:
            observer.on_first_token(record, completion)

    def _abort(self, record: RequestRecord, now: float) -> list[str]:
        aborted = [one for one in record.completions if not one.is_finished]
        for completion in aborted:
            completion.finish("abort")
            self._close(record, completion, now)
        if aborted and record.sink is not None:
            shown = record.completions if record.is_final_only else aborted
            _put(record, record.sink, record.request_output(shown))
        return [completion.request_id for completion in aborted]

    def _close(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        del self._open[completion.request_id]
        record.num_open -= 1
        for observer in self._observers["on_finished"]:
            observer.on_finished(record, completion, now)


def _put(record: RequestRecord, sink: Sink, output: AnyOutput) -> None:
    """Pass an output to the sink; the last output detaches record and sink."""
    if output.finished:
        record.sink = None
    sink.put(output)
