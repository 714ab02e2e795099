"""`AsyncLLM`: serves requests of an event loop with streams of outputs. Names are vLLM's.

Used by the server and by programs that embed an engine in asyncio. Combines the input processor, an
engine loop in one of its hosts, and the requests in flight. `AsyncLLMEngine` is the same class.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.config import EngineConfig, ModelConfig
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVEventsConfig
from quire.core.client import EngineCoreClient, EngineHealth, EngineListener
from quire.core.hosts import DEFAULT_STEP_TIMEOUT_S, EngineMode, make_client
from quire.errors import ConfigError, EngineDeadError, QuireError, RequestError, quoted
from quire.frontend.arguments import (
    EngineInput,
    RequestOptions,
    check_data_parallel_rank,
    check_request_id,
    request_id_list,
)
from quire.frontend.engine_base import EngineBase
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.inputs.prompt_parser import ParsedPrompt
from quire.frontend.observers.engine_metrics import EngineMetrics, statistics_observers
from quire.frontend.observers.observer import RequestLog, RequestLogChoice, RequestObserver
from quire.frontend.observers.tracing import RequestTracer
from quire.frontend.online.engine_control import EngineControl
from quire.frontend.online.input_session import InputSession
from quire.frontend.online.online_requests import OnlineRequests
from quire.frontend.online.request_stream import RequestStream
from quire.frontend.output_processor import OutputProcessor
from quire.frontend.unsupported import UnsupportedAsyncMethods, refuse_arguments
from quire.inputs import PromptType, StreamingInput
from quire.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.param_checks import checked_json
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol.pooling_params import PoolingParams

if TYPE_CHECKING:
    from quire.frontend.observers.user_stats import StatLoggerFactory

_LONGEST_WAIT_S = 1e6
_REFRESH_S = 0.2
_IN_A_PROCESS = " if the engine runs in another process (engine_mode='thread' accepts any objects)"


class AsyncLLM(EngineControl, EngineBase, UnsupportedAsyncMethods):
    """One model, served to many callers of one event loop.

    The constructor loads the model and raises any error of that. The engine serves one event loop
    at a time, on any thread: while requests of one loop are in flight, calls from another loop
    raise ConfigError. If a caller stops iterating or is cancelled, its request is freed before the
    next step.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        engine_mode: EngineMode = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        max_engine_restarts: int = 0,
        client: EngineCoreClient | None = None,
        tracer: RequestTracer | None = None,
        request_log: RequestLogChoice | None = None,
        stat_loggers: Sequence[StatLoggerFactory] = (),
    ) -> None:
        """`client` and `tracer` replace those that `config` selects."""
        super().__init__(config, tracer)
        this = weakref.ref(
            self
        )  # weak, so that a dropped engine is freed without the garbage collector
        self.input_processor = InputProcessor(
            config, self.tokenizer, lambda: _prepare_grammars(this())
        )
        observers: list[RequestObserver] = [] if self._tracer is None else [self._tracer]
        if request_log is not None:
            observers.append(RequestLog(request_log, self.tokenizer))
        observers += statistics_observers(config, stat_loggers)
        self._dead_error: EngineDeadError | None = None
        self._when_dead: list[Callable[[EngineDeadError], object]] = []
        self._sessions: weakref.WeakSet[InputSession] = weakref.WeakSet()
        """Requests with a prompt that is still arriving."""
        self._client = client or make_client(
            config, engine_mode, step_timeout_s, max_engine_restarts
        )
        weakref.finalize(self, self._client.abandon).atexit = False
        self.input_processor.block_keys = self._client.block_keys
        self.requests = OnlineRequests(config, self.tokenizer, self._client, observers, this)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: Sequence[StatLoggerFactory] | None = None,
        *,
        engine_mode: EngineMode = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    ) -> AsyncLLM:
        """Build the configuration, then load. `usage_context` is vLLM's and has no effect.
        `stat_loggers`: classes or functions that create loggers, see `StatLoggerBase`. Raises
        ConfigError for start_engine_loop=False."""
        del usage_context
        if not start_engine_loop:
            raise ConfigError("start_engine_loop must be True; leave it out")
        return cls(
            build_engine_config(engine_args, "server"),
            engine_mode=engine_mode,
            step_timeout_s=step_timeout_s,
            stat_loggers=stat_loggers or (),
            request_log=(
                RequestLogChoice() if getattr(engine_args, "enable_log_requests", False) else None
            ),
        )

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: EngineConfig,
        *,
        usage_context: object = None,
        stat_loggers: Sequence[StatLoggerFactory] | None = None,
        enable_log_requests: bool = False,
        engine_mode: EngineMode = "auto",
    ) -> AsyncLLM:
        """Load the model of another engine's `vllm_config`. See `from_engine_args`."""
        del usage_context
        log = RequestLogChoice() if enable_log_requests else None
        return cls(
            vllm_config, engine_mode=engine_mode, request_log=log, stat_loggers=stat_loggers or ()
        )

    # --- requests

    async def generate(
        self,
        prompt: PromptType | AsyncGenerator[StreamingInput, None],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: None = None,
        reasoning_ended: None = None,
        reasoning_parser_kwargs: None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs according to `sampling_params.output_kind`. Arguments and errors are those
        of `add_request`; also raises EngineGenerateError if this request failed, and RequestError
        if its constraints left no token to choose in the middle of the text."""
        del session_id
        refuse_arguments(
            kv_hints=kv_hints,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        options = RequestOptions(
            priority=priority,
            tokenization=self.tokenization(tokenization_kwargs),
            trace_headers=trace_headers,
            prompt_text=prompt_text,
            lora=lora_request,
            prompt_adapter=prompt_adapter_request,
            data_parallel_rank=data_parallel_rank,
        )
        stream = await self.submit(request_id, prompt, sampling_params, options)
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Yields one output: the vector, classes or vectors of the prompt. Arguments and errors are
        those of `add_request`; also raises EngineGenerateError if this request failed."""
        options = RequestOptions(
            priority=priority,
            tokenization=self.tokenization(tokenization_kwargs),
            trace_headers=trace_headers,
            lora=lora_request,
        )
        stream = await self.submit(request_id, prompt, pooling_params, options)
        try:
            yield await cast(RequestStream, stream).pooled()
        finally:
            stream.close()

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType | AsyncGenerator[StreamingInput, None],
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        prompt_text: str | None = None,
        reasoning_ended: None = None,
        reasoning_parser_kwargs: None = None,
        kv_hints: None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> RequestStream | InputSession:
        """Start a request; returns the stream of its outputs, which the caller must read to its end
        or close. Raises RequestError, CapacityError, EngineDeadError.

        `prompt` may arrive in pieces from an async generator, see `InputSession`. `trace_headers`
        (W3C `traceparent`) contain the parent span of the request's span. `prompt_text` is the text
        of a prompt of token ids, for outputs. `session_id` is vLLM's and has no effect with one
        engine.
        """
        del session_id
        refuse_arguments(
            kv_hints=kv_hints,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        options = RequestOptions(
            arrival_time=arrival_time,
            priority=priority,
            tokenization=self.tokenization(tokenization_kwargs),
            trace_headers=trace_headers,
            prompt_text=prompt_text,
            lora=lora_request,
            prompt_adapter=prompt_adapter_request,
            data_parallel_rank=data_parallel_rank,
        )
        return await self.submit(request_id, prompt, params, options)

    async def submit(
        self,
        request_id: str,
        prompt: PromptType | AsyncGenerator[StreamingInput, None],
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> RequestStream | InputSession:
        """Start a request; returns the stream of its outputs. Raises as `add_request`."""
        check_data_parallel_rank(
            options.data_parallel_rank, self.config.parallel.data_parallel_size
        )
        if isinstance(prompt, AsyncGenerator):
            if isinstance(params, PoolingParams):
                raise RequestError("a pooling request needs its whole prompt", parameter="prompt")
            return self._begin_session(request_id, prompt, params, options)
        return self.requests.start(await self._process(request_id, prompt, params, options))

    async def _process(
        self,
        request_id: str,
        prompt: PromptType | ParsedPrompt,
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> EngineInput:
        if self._client.is_other_process and isinstance(params, SamplingParams):
            checked_json(params.extra_args, "extra_args", _IN_A_PROCESS)
        process = partial(self.input_processor.process, request_id, prompt, params, options)
        # Compiling a grammar may take long, and so may a tokenizer of unknown patterns.
        has_grammar = getattr(params, "structured_outputs", None) is not None
        is_quick = self.tokenizer is None or self.tokenizer.is_quick
        return process() if is_quick and not has_grammar else await asyncio.to_thread(process)

    def _begin_session(
        self,
        request_id: str,
        pieces: AsyncGenerator[StreamingInput, None],
        params: SamplingParams,
        options: RequestOptions,
    ) -> InputSession:
        own = replace(options, prompt_text=None)  # the pieces have their own texts

        async def begin(
            prompt: ParsedPrompt, params: SamplingParams, follows: bool
        ) -> RequestStream:
            request = await self._process(request_id, prompt, params, own)
            return self.requests.start(request, follows=follows)

        check_request_id(request_id)
        parse = partial(self.input_processor.parse, tokenization=options.tokenization)
        session = InputSession(request_id, pieces, params, parse, begin)
        self._sessions.add(session)
        return session

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raises CapacityError if the queue has no room for `n` more outputs."""
        del request_id
        self.requests.check_admission(n)

    def get_num_unfinished_requests(self) -> int:
        """Number of unfinished outputs: a request of `n` outputs counts `n` times."""
        return self.requests.num_unfinished

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """Abort all requests with these ids; their streams receive a last output.

        `internal` is vLLM's and has no effect: the ids are always the user's.
        """
        del internal
        ids = request_id_list(request_id)
        self.requests.abort(ids)
        for session in self._sessions:
            if session.request_id in ids:
                session.abort()

    async def abort_all(self) -> None:
        """Abort all requests."""
        self.requests.abort_all()
        for session in self._sessions:
            session.abort()

    async def refresh_metrics(self) -> None:
        """Update the metrics of the KV store, which continues to work after the last step, those
        of ranks, and the expected wait. Does not wait for a busy engine."""
        series = self.metrics.series
        series.expected_wait_seconds.set(self.requests.expected_wait_s())
        with suppress(asyncio.TimeoutError, QuireError):
            if series.kv_store is not None:
                found = await asyncio.wait_for(self.call("kv_store_stats"), _REFRESH_S)
                series.kv_store.show(found["sums"], found["usage"])
            await self.refresh_ranks()

    async def refresh_ranks(self) -> None:
        """Update the metrics of ranks. Raises TimeoutError if the engine is busy, and what the
        engine raises."""
        shown = self.metrics.series.ranks
        if shown is not None:
            shown.restarts.value = float(self._client.num_restarts)
            shown.show(await asyncio.wait_for(self.collective_rpc("rank_stats"), _REFRESH_S))

    # --- life

    def bind(self) -> None:
        """Serve the running event loop from now on, before its first request: an engine that dies
        can be started again only then. Raises ConfigError if another loop is using this engine."""
        with self.requests.binding.bound():
            pass

    def health(self) -> EngineHealth:
        """The last known state of the engine; never blocks."""
        return self._client.health()

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is dead; a long step does not count as dead."""
        health = self.health()
        if health.state == "dead":
            raise EngineDeadError(health.reason)

    @property
    def is_running(self) -> bool:
        """Whether the engine accepts requests."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has stopped."""
        return self.errored

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        return self.requests.are_lost

    @property
    def dead_error(self) -> BaseException:
        """The error with which the engine died."""
        return self._dead_error or EngineDeadError(self.health().reason or "the engine is alive")

    def call_when_dead(self, callback: Callable[[EngineDeadError], object]) -> None:
        """Call this once, on the bound event loop, when the engine dies or is shut down; now, if
        that has happened."""
        if self._dead_error is None:
            self._when_dead.append(callback)
        else:
            callback(self._dead_error)

    async def drain(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for all requests in flight, then abort the rest.

        Returns True if no request was aborted.
        """
        try:
            await asyncio.wait_for(self.wait_until_idle(), timeout_s)
        except asyncio.TimeoutError:
            await self.abort_all()
            return False
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine after the running step, which may take `timeout` seconds more (None: a
        default); waiting callers get EngineDeadError. Idempotent and thread-safe.

        To wait for requests in flight first, use `drain`. Raises ConfigError for an invalid
        timeout.
        """
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and 0 <= timeout < _LONGEST_WAIT_S):
            raise ConfigError(f"timeout must be a number of seconds, got {quoted(timeout)}; try 5")
        self._client.shutdown(timeout)
        self._close_parts()
        error = EngineDeadError("the engine was shut down")
        loop = self.requests.binding.loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._on_dead, error)
        else:
            self._on_dead(error)

    # --- questions

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's metrics."""
        return self.requests.metrics

    @property
    def output_processor(self) -> OutputProcessor:
        """The processor that holds the unfinished requests."""
        return self.requests.outputs

    async def get_model_config(self) -> ModelConfig:
        """The configuration of the model."""
        return self.config.model

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks that the model supports."""
        return self.config.model.supported_tasks

    def get_kv_event_sources(self) -> dict[int, KVEventsConfig]:
        """Configuration of KV events by data-parallel rank; empty if they are off."""
        events = self.config.kv_events
        if events is None:
            return {}
        count = self.config.parallel.data_parallel_size
        return {rank: events.of_rank(rank) for rank in range(count)}

    async def is_tracing_enabled(self) -> bool:
        """Whether requests are traced."""
        return self._tracer is not None

    async def do_log_stats(self) -> None:
        """Log the statistics line now, if enabled, and call the user's loggers."""
        for observer in self.requests.observers:
            observer.log()

    # --- callbacks

    def on_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop from now on. The client does not keep this object alive."""
        this = weakref.ref(self)

        def on_lost(core_ids: list[str], error: EngineDeadError) -> None:
            llm = this()
            if llm is not None:
                llm.requests.fail(error, core_ids)

        def on_dead(error: EngineDeadError) -> None:
            llm = this()
            if llm is not None:
                llm._on_dead(error)

        self._client.attach(loop, EngineListener(self.requests.taking(loop), on_dead, on_lost))

    def _on_dead(self, error: EngineDeadError) -> None:
        if self._dead_error is None:
            self._dead_error = error
            for callback in self._when_dead:
                callback(error)
        self.requests.fail(error)
        for session in self._sessions:
            session.abort(copy.copy(error))


def _prepare_grammars(llm: AsyncLLM | None) -> None:
    if llm is not None:
        llm._client.notify("prepare_grammars")


AsyncLLMEngine = AsyncLLM
