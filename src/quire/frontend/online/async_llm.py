"""`AsyncLLM`: requests in, streams of outputs out, beside an event loop. vLLM's names.

Used by the server and by programs that embed an engine in asyncio. Composes the input processor, an
engine loop in one of its hosts, and the requests in flight. `AsyncLLMEngine` is the same class.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Literal

from quire.config import EngineConfig, ModelConfig
from quire.config.engine_args import EngineArgs
from quire.core.client import EngineCoreClient, EngineHealth, EngineListener
from quire.core.hosts import DEFAULT_STEP_TIMEOUT_S, EngineMode, make_client
from quire.errors import ConfigError, EngineDeadError
from quire.frontend.arguments import refuse_arguments, request_id_list, wants_special_tokens
from quire.frontend.input_processor import InputProcessor
from quire.frontend.observers.engine_metrics import EngineMetrics
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.observers.request_log import RequestLog
from quire.frontend.observers.tracing import RequestTracer
from quire.frontend.online.online_requests import OnlineRequests
from quire.frontend.online.pause_gate import PauseGate
from quire.inputs import PromptType
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import EngineCoreOutputs
from quire.tokenizer import Tokenizer
from quire.tokenizer.for_model import load_tokenizer

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
        observers: list[RequestObserver] = [] if tracer is None else [tracer]
        if log_requests:
            observers.append(RequestLog())
        self._dead_error: EngineDeadError | None = None
        self._gate = PauseGate()
        self._client = client or make_client(config, engine_mode, step_timeout_s)
        self.requests = OnlineRequests(
            config, self.tokenizer, self._client, observers, self._on_bound
        )

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
        [stream] = self.requests.admit([request])
        try:
            self.requests.begin(stream)
            for core_request in request.core_requests:
                self.requests.hand_over(core_request)
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends all requests of these ids; their streams get a last output saying so."""
        self.requests.abort(request_id_list(request_id))

    async def abort_all(self) -> None:
        """Ends every request."""
        self.requests.abort_all()

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
        with self.requests.binding.bound():
            self._gate.close()
        if mode == "abort":
            await self.abort_all()
        elif mode == "wait":
            await self.wait_until_idle()
        else:
            await self.call("pause")
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Ends a pause; everything that waited goes on."""
        with self.requests.binding.bound():
            was_closed = self._gate.open()
        if was_closed:
            await self.call("resume")

    @property
    def is_paused(self) -> bool:
        """Whether new requests wait for `resume_generation`."""
        return self._gate.is_closed

    async def wait_until_resumed(self) -> None:
        """Returns at once unless generation is paused."""
        with self.requests.binding.waiting():
            await self._gate.wait()

    async def wait_until_idle(self) -> None:
        """Returns when nothing is in flight."""
        while self.requests:
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
        """Ends the engine at once; callers that still wait get EngineDeadError. Idempotent. Any
        thread may call it.

        `timeout` is vLLM's and has no effect: what is in flight can be waited for with `drain`.
        """
        del timeout
        self._client.shutdown()
        if self._tracer is not None:
            self._tracer.close()
        error = EngineDeadError("the engine was shut down")
        loop = self.requests.binding.loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._on_dead, error)
        else:
            self._on_dead(error)

    # --- questions

    @property
    def metrics(self) -> EngineMetrics:
        """What the engine counts about itself."""
        return self.requests.metrics

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
        return bool(await self.call("reset_prefix_cache"))

    async def do_log_stats(self) -> None:
        """Logs the statistics line now, if there is one."""
        if self.requests.stat_logger is not None:
            self.requests.stat_logger.log()

    async def call(self, command: str) -> Any:
        """Runs one of the engine's commands (`EngineCore.commands`) between two steps. Raises
        EngineGenerateError if it fails, EngineDeadError."""
        with self.requests.binding.waiting():
            return await self._client.call(command)

    # --- the other side

    def _on_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another event loop is served from now on."""
        self._gate.renew()

        def on_outputs(outputs: EngineCoreOutputs) -> None:
            if self.requests.binding.loop is loop:  # else they are of requests that have ended
                self.requests.take_outputs(outputs)

        self._client.attach(loop, EngineListener(on_outputs, self._on_dead))

    def _on_dead(self, error: EngineDeadError) -> None:
        self._dead_error = self._dead_error or error
        self.requests.fail_all(error)


AsyncLLMEngine = AsyncLLM
