"""`LLMEngine`: runs requests step by step on the caller's thread.

Used by `LLM` and by programs that call `step` themselves. Combines the input processor, the core
and the output processor, and lets several threads take turns using them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.config.engine_args import EngineArgs
from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import ConfigError, EngineDeadError, QuireError
from quire.executor import Executor
from quire.frontend.arguments import EngineInput, RequestOptions, request_id_list
from quire.frontend.engine_base import EngineBase
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.observers.engine_metrics import EngineMetrics, statistics_observers
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.offline.engine_control import EngineControl
from quire.frontend.offline.turn_lock import IdleTime, TurnLock
from quire.frontend.output_processor import OutputProcessor
from quire.frontend.request_record import AnyOutput, Sink
from quire.frontend.unsupported import UnsupportedEngineMethods, refuse_arguments
from quire.inputs import PromptType
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol.pooling_params import PoolingParams
from quire.system.deferred_signals import deferred_signals

if TYPE_CHECKING:
    from quire.frontend.observers.user_stats import StatLoggerFactory
    from quire.metrics.reader import Metric


_PAUSED_STEP_S = 0.005
"""Seconds that a step of a sleeping engine takes, so that a loop of steps leaves the processor to
others."""


class LLMEngine(EngineControl, EngineBase, UnsupportedEngineMethods):
    """One model, ready to serve. Threads may share it: each call waits for the running one.

    Exceptions of signal handlers, such as Ctrl+C, are raised at the end of a call, so that the
    engine stays usable. Calls after `shutdown` raise EngineDeadError.
    """

    def __init__(
        self,
        config: EngineConfig,
        engine_core: EngineCore | None = None,
        stat_loggers: Sequence[StatLoggerFactory] = (),
    ) -> None:
        """Load tokenizer and model. Raises ConfigError, ModelError or BackendError."""
        EngineControl.__init__(self)
        EngineBase.__init__(self, config)
        self.engine_core = engine_core or EngineCore(config)
        self.input_processor = InputProcessor(
            config, self.tokenizer, self.engine_core.commands["prepare_grammars"]
        )
        self.metrics = EngineMetrics(config) if config.observability.log_stats else None
        """None with `disable_log_stats`."""
        self.observers: list[RequestObserver] = [] if self._tracer is None else [self._tracer]
        if self.metrics is not None:
            self.observers.append(self.metrics)
        self.observers += statistics_observers(config, stat_loggers)
        self.output_processor = OutputProcessor(
            self.tokenizer, config.scheduler.stream_interval, self.observers
        )
        self._lock = TurnLock()
        self._is_shut_down = False
        self._untaken: list[AnyOutput] = []
        """Outputs of a step that a signal handler kept from returning."""
        self._idle_time = IdleTime(self.engine_core, self._lock)
        self._idle_time.begin()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: object = None,
        stat_loggers: Sequence[StatLoggerFactory] | None = None,
        enable_multiprocessing: bool = False,
    ) -> LLMEngine:
        """Build the configuration, then load. `usage_context` is vLLM's and has no effect.
        `stat_loggers`: classes or functions that create loggers, see `StatLoggerBase`. Raises
        ConfigError for an engine in another process."""
        del usage_context
        if enable_multiprocessing:
            raise ConfigError(
                "enable_multiprocessing must be False: an LLMEngine computes on its callers' "
                "threads; AsyncLLMEngine can run its engine in a process"
            )
        config = build_engine_config(engine_args, "llm")
        return cls(config, stat_loggers=stat_loggers or ())

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: EngineConfig,
        usage_context: object = None,
        stat_loggers: Sequence[StatLoggerFactory] | None = None,
    ) -> LLMEngine:
        """Load the model of another engine's `vllm_config`. See `from_engine_args`."""
        del usage_context
        return cls(vllm_config, stat_loggers=stat_loggers or ())

    @property
    def model_executor(self) -> Executor:
        """The executor of the worker: `model_executor.driver_worker`, as in vLLM."""
        return self.engine_core.executor

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for `wake_up`, so that a step returns nothing."""
        return not self._is_shut_down and super().is_paused

    def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks that the model supports."""
        return self.config.model.supported_tasks

    def get_metrics(self) -> list[Metric]:
        """The current metrics, under vLLM's names. Raises ConfigError with `disable_log_stats`."""
        from quire.metrics.reader import read_metrics

        if self.metrics is None:
            raise ConfigError(
                "get_metrics requires statistics, which disable_log_stats=True turns off (LLM's "
                "default): use LLM(..., disable_log_stats=False)"
            )
        return read_metrics(self.metrics.series.metric_set)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        session_id: str | None = None,
        prompt_text: str | None = None,
        kv_hints: None = None,
        *,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        sink: Sink | None = None,
    ) -> str:
        """Validate and queue a request; returns its id. Raises RequestError.

        `trace_headers` (W3C `traceparent`) contain the parent span of the request's span.
        `prompt_text` is the text of a prompt of token ids, for outputs. `session_id` is vLLM's and
        has no effect with one engine. With a `sink`, outputs go to it on the stepping thread and
        are not returned by `step`.
        """
        del session_id
        refuse_arguments(kv_hints=kv_hints)
        options = RequestOptions(
            arrival_time=arrival_time,
            priority=priority,
            tokenization=self.tokenization(tokenization_kwargs),
            trace_headers=trace_headers,
            prompt_text=prompt_text,
            lora=lora_request,
            prompt_adapter=prompt_adapter_request,
        )
        self.submit(request_id, prompt, params, options, sink)
        return request_id

    def submit(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
        sink: Sink | None = None,
    ) -> None:
        """Validate and queue a request. Raises RequestError."""
        request: EngineInput | None = None
        with deferred_signals(undo=lambda: self._withdraw(request)):
            request = self.input_processor.process(request_id, prompt, params, options)
            self.add_input(request, sink)

    def add_input(self, request: EngineInput, sink: Sink | None = None) -> None:
        """Queues a request that the input processor has validated. Raises RequestError."""
        with self.turn():
            self._add(request, sink)

    def step(self) -> list[AnyOutput]:
        """Run one step; returns its outputs according to the requests' `output_kind`.

        While another thread lets the engine sleep, waits a little and returns nothing. Raises
        ConfigError, and keeps all requests, if they wait for a `wake_up` of this thread.
        """
        outputs = self.advance()
        if not outputs and self.is_paused and self.has_unfinished_requests():
            if not self.engine_core.has_unfinished_requests():
                self.refuse_to_wait()
            time.sleep(_PAUSED_STEP_S)
        return outputs

    def advance(self) -> list[AnyOutput]:
        """Same as `step`, but returns nothing at once while the engine sleeps."""
        outputs: list[AnyOutput] = []

        def give_back() -> None:
            with self._lock:
                self._untaken[:0] = outputs

        with deferred_signals(undo=give_back), self._lock:
            self._refuse_after_shutdown()
            brought = self._step()
            outputs, self._untaken = self._untaken + brought, []
        return outputs

    def abort_request(self, request_ids: str | Iterable[str], internal: bool = False) -> None:
        """Abort requests; unknown ids are ignored. Only a `sink` receives a last output.

        `internal` is vLLM's and has no effect: the ids are always the user's.
        """
        del internal
        ids = request_id_list(request_ids)
        with deferred_signals(), self._lock:
            self.engine_core.abort_requests(self.output_processor.abort_requests(ids))

    def abort_all(self) -> None:
        """Abort all requests, for a caller that will not collect the rest."""
        with deferred_signals(), self._lock:
            records = self.output_processor.records()
            self.engine_core.abort_requests(self.output_processor.abort(records))

    def fail_all(self, error: QuireError) -> None:
        """End all requests; each `sink` receives the error."""
        with deferred_signals(), self._lock:
            self.engine_core.abort_requests(self.output_processor.fail(error))

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has work or outputs."""
        return bool(self._untaken) or self.output_processor.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Number of unfinished outputs: a request of `n` outputs counts `n` times."""
        return self.output_processor.get_num_unfinished_requests()

    def do_log_stats(self) -> None:
        """Log the statistics line now, if enabled, and call the user's loggers."""
        with self.turn():
            for observer in self.observers:
                observer.log()

    def do_log_stats_with_interval(self) -> None:
        """Log if the interval has passed, as `step` does."""
        with self.turn():
            for observer in self.observers:
                observer.log_when_due()

    def shutdown(self) -> None:
        """Free the model after the running step. Idempotent."""
        with deferred_signals():
            self._shut_down()
            self._tell_resumed()

    def _shut_down(self) -> None:
        with self._lock:
            self._is_shut_down = True
            self._idle_time.end()
            self.engine_core.shutdown()
            self._close_parts()

    @contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """Take this thread's turn to use the engine; other threads wait. Signal handlers are
        deferred, and the yielded function runs them. Raises EngineDeadError after `shutdown`."""
        with deferred_signals() as deliver, self._lock:
            self._refuse_after_shutdown()
            yield deliver

    def _refuse_after_shutdown(self) -> None:
        if self._is_shut_down:
            raise EngineDeadError("the engine was shut down; create a new one")

    def _add(self, request: EngineInput, sink: Sink | None) -> None:
        added: list[str] = []
        try:
            for core_request in request.core_requests:
                self.engine_core.add_request(core_request)
                added.append(core_request.request_id)
        except Exception:
            self.engine_core.abort_requests(added)
            raise
        self.output_processor.add_request(request, sink)

    def _withdraw(self, request: EngineInput | None) -> None:
        """Abort a request whose id was not returned to the caller, if it was queued."""
        with self._lock:
            own = [one for one in self.output_processor.records() if one.input is request]
            if own:
                self.engine_core.abort_requests(self.output_processor.abandon(own))

    def _run_to_the_end(self, deliver: Callable[[], None]) -> None:
        """Step until no request can run; the next `step` returns the outputs."""
        while self.engine_core.has_unfinished_requests():
            self._untaken += self._step()
            deliver()

    def _step(self) -> list[AnyOutput]:
        if not self.engine_core.has_unfinished_requests():
            return []
        with self._lock.stepping():
            outputs = self.engine_core.step()
        done = self.output_processor.process_outputs(outputs)
        if done.aborts:
            self.engine_core.abort_requests(done.aborts)
        if not self.engine_core.has_unfinished_requests():
            self._idle_time.begin()
        return done.request_outputs
