"""`AsyncLLM`: requests in, streams of outputs out, beside an event loop. vLLM's names.

Used by the server and by whoever embeds an engine in asyncio. Composes the input processor, an
engine loop in one of its hosts, and the output processor. `AsyncLLMEngine` is the same class.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from quire.config import EngineConfig, ModelConfig
from quire.config.engine_args import EngineArgs
from quire.core.client import EngineCoreClient, EngineHealth, EngineListener
from quire.core.hosts import DEFAULT_STEP_TIMEOUT_S, EngineMode, make_client
from quire.errors import ConfigError, EngineDeadError
from quire.frontend.arguments import refuse_arguments, request_id_list, wants_special_tokens
from quire.frontend.input_processor import EngineInput, InputProcessor
from quire.frontend.online.in_flight import InFlight
from quire.frontend.online.pause_gate import PauseGate
from quire.frontend.online.request_stream import RequestStream
from quire.inputs import PromptType
from quire.log import get_logger
from quire.metrics import EngineMetrics
from quire.metrics.tracing import RequestTracer
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.tokenizer import Tokenizer
from quire.tokenizer.for_model import load_tokenizer

logger = get_logger(__name__)

PauseMode = Literal["abort", "wait", "keep"]


class AsyncLLM:
    """One model, served to many callers of one event loop.

    Constructing one loads the model and raises what prevents that. It serves one event loop at a
    time, on whatever thread: while anything of one is in flight, calls from another raise
    ConfigError. Whoever stops iterating, or is cancelled, frees the request before the next step.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        engine_mode: EngineMode = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        client: EngineCoreClient | None = None,
        tracer: RequestTracer | None = None,
        log_requests: bool = False,
    ) -> None:
        """`client` and `tracer` replace what `config` asks for."""
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        self.input_processor = InputProcessor(config, self.tokenizer)
        endpoint = config.observability.otlp_traces_endpoint
        if tracer is None and endpoint is not None:
            tracer = RequestTracer.to_endpoint(endpoint, config.model.served_model_name[0])
        self._tracer = tracer
        self._in_flight = InFlight(config, self.tokenizer, self._abort_in_core, tracer)
        self._log_requests = log_requests
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_waiting = 0
        """Calls of that loop that wait for something other than a request's outputs."""
        self._loop_lock = threading.Lock()
        """Guards the choice of the loop, which another thread's loop may want to be."""
        self._dead_error: EngineDeadError | None = None
        self._gate = PauseGate()
        self._client = client or make_client(config, engine_mode, step_timeout_s)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *,
        engine_mode: EngineMode = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    ) -> AsyncLLM:
        """Settles the configuration, then loads."""
        return cls(
            build_engine_config(engine_args, "server"),
            engine_mode=engine_mode,
            step_timeout_s=step_timeout_s,
            log_requests=getattr(engine_args, "enable_log_requests", False),
        )

    # --- requests

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as `sampling_params.output_kind` says. Raises RequestError, CapacityError,
        EngineGenerateError if this request failed, EngineDeadError if all of them did.

        `trace_headers` (W3C `traceparent`) name the span that the request's own belongs to.
        """
        refuse_arguments(lora_request=lora_request)
        wants_special = wants_special_tokens(tokenization_kwargs)
        await self.wait_until_resumed()
        request = self.input_processor.process(
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            add_special_tokens=wants_special,
            trace_headers=trace_headers,
        )
        self.admit([request])
        stream = self.submit(request)
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    def submit(self, request: EngineInput, news: asyncio.Event | None = None) -> RequestStream:
        """Hands a validated and admitted request to the engine at once.

        Raises EngineDeadError. `news` is set when the stream has something to take.
        """
        stream = self.begin(request, news)
        try:
            for core_request in request.core_requests:
                self.hand_over(core_request)
        except BaseException:
            stream.close()
            raise
        return stream

    def begin(self, request: EngineInput, news: asyncio.Event | None = None) -> RequestStream:
        """The stream of an admitted request, whose core requests are handed over afterwards."""
        with self._loop_lock:
            self._attach()
            stream = self._in_flight.add(request, news)
        if self._log_requests:
            logger.info(
                "request %s: %d prompt tokens, %s",
                request.request_id,
                len(request.prompt_token_ids),
                request.params,
            )
        return stream

    def hand_over(self, core_request: EngineCoreRequest) -> None:
        """Hands over one of the `n` of a request that has begun. Raises EngineDeadError."""
        self._client.add_request(core_request)

    def admit(self, requests: Sequence[EngineInput]) -> None:
        """Takes places in the queue for requests that will be submitted, all or none. Raises
        CapacityError."""
        self._in_flight.admit(requests)

    def release(self, requests: Sequence[EngineInput]) -> None:
        """Gives back the places of requests that will not be submitted."""
        self._in_flight.release(requests)

    def check_admission(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raises CapacityError if the queue has no room for that many more."""
        with self._loop_lock:
            self._attach()
        self._in_flight.check_admission(num_requests, num_tokens)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends all requests of these ids; their streams get a last output saying so."""
        request_ids = request_id_list(request_id)
        with self._loop_lock:
            self._attach()
        self._in_flight.abort_users(request_ids)

    def close_streams(self, streams: Iterable[RequestStream]) -> None:
        """Ends what has not ended of several requests at once."""
        self._in_flight.close(streams)

    async def abort_all(self) -> None:
        """Ends every request."""
        with self._loop_lock:
            self._attach()
        self._in_flight.abort_all()

    # --- life

    def health(self) -> EngineHealth:
        """How the engine is doing, as far as is known now; never blocks."""
        return self._client.health()

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is dead; one in a long step is not."""
        health = self.health()
        if health.state == "dead":
            raise EngineDeadError(health.reason)

    @property
    def is_running(self) -> bool:
        """Whether the engine can take requests."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has ended."""
        return self.errored

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        return self._client.health().state == "dead"

    @property
    def dead_error(self) -> BaseException:
        """Why the engine died."""
        return self._dead_error or EngineDeadError(self.health().reason or "the engine is alive")

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """New requests wait from now on. Those in flight are aborted, waited for, or kept
        frozen where they are; the prefix cache is cleared unless they keep their blocks."""
        with self._waiting():
            self._gate.close()
        if mode == "abort":
            await self.abort_all()
        elif mode == "wait":
            await self.wait_until_idle()
        else:
            await self._call("pause")
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Ends a pause; everything that waited goes on."""
        with self._waiting():
            if self._gate.open():
                await self._call("resume")

    @property
    def is_paused(self) -> bool:
        """Whether new requests wait for `resume_generation`."""
        return self._gate.is_closed

    async def wait_until_resumed(self) -> None:
        """Returns at once unless generation is paused."""
        with self._waiting():
            await self._gate.wait()

    async def wait_until_idle(self) -> None:
        """Returns when nothing is in flight."""
        while self._in_flight:
            await asyncio.sleep(0.02)

    async def drain(self, timeout_s: float) -> bool:
        """Waits for what is in flight, `timeout_s` at most, then aborts the rest.

        True if nothing had to be aborted.
        """
        try:
            await asyncio.wait_for(self.wait_until_idle(), timeout_s)
        except asyncio.TimeoutError:
            await self.abort_all()
            return False
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends the engine at once; whoever still waits is told. Idempotent, from any thread.

        `timeout` is vLLM's and has no effect: what is in flight can be waited for with `drain`.
        """
        del timeout
        self._client.shutdown()
        if self._tracer is not None:
            self._tracer.close()
        error = EngineDeadError("the engine was shut down")
        loop = self._loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._on_dead, error)
        else:
            self._on_dead(error)

    # --- questions

    @property
    def metrics(self) -> EngineMetrics:
        """What the engine counts about itself."""
        return self._in_flight.metrics

    async def get_model_config(self) -> ModelConfig:
        """What is being served."""
        return self.config.model

    async def get_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ConfigError if it was left out."""
        if self.tokenizer is None:
            raise ConfigError("there is no tokenizer: the engine has skip_tokenizer_init=True")
        return self.tokenizer

    async def reset_prefix_cache(self) -> bool:
        """Forgets all cached prompts; False while requests are running."""
        return bool(await self._call("reset_prefix_cache"))

    async def block_map(self) -> dict[str, Any]:
        """The state of every KV block, run-length coded, for the live view."""
        found: dict[str, Any] = await self._call("block_map")
        return found

    async def do_log_stats(self) -> None:
        """Logs the statistics line now, if there is one."""
        self._in_flight.log_stats()

    # --- the other side

    async def _call(self, method: Any) -> Any:
        with self._waiting():
            return await self._client.call(method)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Inside, the running event loop is the one that is told."""
        with self._loop_lock:
            self._attach()
            self._num_waiting += 1
            loop = self._loop
        try:
            yield
        finally:
            with self._loop_lock:
                if self._loop is loop:
                    self._num_waiting -= 1

    def _attach(self) -> None:
        """Makes the running event loop the one that is told. The caller holds the lock."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._in_flight.abandon_all()
            self._num_waiting = 0
        elif self._in_flight or self._num_waiting:
            raise ConfigError(
                "the engine is being used by another event loop; it serves one at a time: "
                "make an engine for each, or call it from one loop"
            )
        self._loop = loop
        self._gate.renew()

        def on_outputs(outputs: EngineCoreOutputs) -> None:
            if self._loop is loop:  # else they are of requests that have ended
                self._in_flight.on_outputs(outputs)

        self._client.attach(loop, EngineListener(on_outputs, self._on_dead))

    def _abort_in_core(self, core_ids: list[str]) -> None:
        if not self.errored:
            self._client.abort_requests(core_ids)

    def _on_dead(self, error: EngineDeadError) -> None:
        self._dead_error = self._dead_error or error
        self._in_flight.fail_all(error)


AsyncLLMEngine = AsyncLLM
