"""`AsyncLLM`: requests in, streams of outputs out, beside an event loop. vLLM's names.

Used by the server and by whoever embeds an engine in asyncio. Composes the input processor, an
engine loop in one of its homes, and the output processor. `AsyncLLMEngine` is the same class.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Literal

from quire.config import EngineConfig, ModelConfig
from quire.config.engine_args import EngineArgs
from quire.engine.admission import AdmissionControl, QueueFullError
from quire.engine.build import build_engine_config
from quire.engine.client import EngineCoreClient, EngineHealth, EngineListener
from quire.engine.input_processor import EngineInput, InputProcessor
from quire.engine.llm_engine import refuse_unsupported, wants_special_tokens
from quire.engine.output_processor import OutputProcessor
from quire.engine.request_stream import RequestStream
from quire.engine.stat_logger import LoggingStatLogger
from quire.engine.tokenizer_loader import load_tokenizer
from quire.errors import ConfigError, EngineDeadError
from quire.inputs import PromptType
from quire.log import get_logger
from quire.metrics import EngineMetrics
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutputs
from quire.tokenizer import Tokenizer

logger = get_logger(__name__)

EngineHome = Literal["auto", "thread", "process"]
PauseMode = Literal["abort", "wait", "keep"]

DEFAULT_STEP_TIMEOUT_S = 120.0
_WATCH_INTERVAL_S = 0.25
_FEW_CORES = 8


class AsyncLLM:
    """One model, served to many callers of one event loop.

    Constructing one loads the model and raises what prevents that. Everything else belongs to
    the event loop of the first caller; another loop may follow once nothing is in flight.
    Whoever stops iterating, or is cancelled, frees the request before the next step.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        home: EngineHome = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        client: EngineCoreClient | None = None,
        log_requests: bool = False,
    ) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        self.metrics = EngineMetrics(config)
        self.input_processor = InputProcessor(config, self.tokenizer)
        self.output_processor = OutputProcessor(self.tokenizer, config.scheduler.stream_interval)
        self._admission = AdmissionControl(config.scheduler)
        self._stat_logger = LoggingStatLogger(config) if config.observability.log_stats else None
        self._log_requests = log_requests
        self._streams: dict[str, RequestStream] = {}
        """By the internal id of the request, which is unique; users' ids need not be."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._dead_error: EngineDeadError | None = None
        self._resumed: asyncio.Event | None = None
        """Exists while generation is paused."""
        self._client = client or make_client(config, home, step_timeout_s)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *,
        home: EngineHome = "auto",
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    ) -> AsyncLLM:
        """Settles the configuration, then loads."""
        return cls(
            build_engine_config(engine_args, "server"),
            home=home,
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
        trace_headers: None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as `sampling_params.output_kind` says. Raises RequestError, CapacityError,
        EngineGenerateError if this request failed, EngineDeadError if all of them did."""
        refuse_unsupported(lora_request=lora_request, trace_headers=trace_headers)
        wants_special = wants_special_tokens(dict(tokenization_kwargs or {}))
        await self.wait_until_resumed()
        request = self.input_processor.process(
            request_id, prompt, sampling_params, priority=priority, add_special_tokens=wants_special
        )
        self.check_admission(len(request.core_requests), len(request.prompt_token_ids))
        stream = self.submit(request)
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    def submit(self, request: EngineInput, news: asyncio.Event | None = None) -> RequestStream:
        """Hands a validated request to the engine at once; admission was the caller's to check.

        Raises EngineDeadError. `news` is set when the stream has something to take.
        """
        self._attach()
        user_id, core_requests = request.request_id, request.core_requests
        internal_id = core_requests[0].request_id
        stream = RequestStream(
            user_id, request.params.output_kind, lambda: self._abort_internal([internal_id]), news
        )
        self.output_processor.add_request(
            dataclasses.replace(request, request_id=internal_id), stream.put
        )
        self._streams[internal_id] = stream
        self.metrics.on_added(core_requests)
        for core_request in core_requests:
            num_tokens = len(core_request.prompt_token_ids)
            self._admission.admit(core_request.request_id, num_tokens, request.arrival_time)
            self._client.add_request(core_request)
        if self._log_requests:
            logger.info(
                "request %s: %d prompt tokens, %s",
                user_id,
                len(request.prompt_token_ids),
                request.params,
            )
        return stream

    def check_admission(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raises CapacityError if the queue has no room for that many more."""
        try:
            self._admission.check(num_requests, num_tokens)
        except QueueFullError as error:
            self.metrics.on_rejected(error.reason)
            raise

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends all requests of these ids; their streams get a last output saying so."""
        wanted = {request_id} if isinstance(request_id, str) else set(request_id)
        self._abort_internal(
            [key for key, stream in self._streams.items() if stream.request_id in wanted]
        )

    async def abort_all(self) -> None:
        """Ends every request."""
        self._abort_internal(list(self._streams))

    # --- life

    def health(self) -> EngineHealth:
        """How the engine is doing, as far as is known now; never blocks."""
        return self._client.health()

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is dead or shows no sign of life."""
        health = self.health()
        if health.state != "alive":
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
        if self._resumed is None:
            self._resumed = asyncio.Event()
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
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None
            await self._call("resume")

    @property
    def is_paused(self) -> bool:
        """Whether new requests wait for `resume_generation`."""
        return self._resumed is not None

    async def wait_until_resumed(self) -> None:
        """Returns at once unless generation is paused."""
        while self._resumed is not None:
            await self._resumed.wait()

    async def wait_until_idle(self) -> None:
        """Returns when nothing is in flight."""
        while self._streams:
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
        self._on_dead(EngineDeadError("the engine was shut down"))

    # --- questions

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
        if self._stat_logger is not None:
            self._stat_logger.log()

    # --- the other side

    async def _call(self, method: Any) -> Any:
        self._attach()
        return await self._client.call(method)

    def _attach(self) -> None:
        """Makes the running event loop the one that is told, and watches over the engine."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._streams and self._loop is not None and not self._loop.is_closed():
                raise ConfigError("the engine is being used by another event loop")
            self._loop = loop
            self._client.attach(loop, EngineListener(self._on_outputs, self._on_dead))
        if self._watch is None or self._watch.done() or self._watch.get_loop() is not loop:
            self._watch = loop.create_task(self._watch_health(), name="quire-watch")

    async def _watch_health(self) -> None:
        """Looks at the engine while anybody waits: looking is what finds a stuck one dead."""
        while self._streams:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            health = self._client.health()
            if health.state == "dead":
                self._on_dead(EngineDeadError(health.reason))

    def _on_outputs(self, outputs: EngineCoreOutputs) -> None:
        """What a step brought. The streams are filled here, their readers run afterwards."""
        done = self.output_processor.process_outputs(outputs)
        if done.aborts:
            self._tell_core_to_abort(done.aborts)
        self.metrics.on_outputs(outputs, done.aborts)
        self._account(outputs, done.aborts)
        if self._stat_logger is not None:
            self._stat_logger.record(
                outputs.stats, done.num_prompt_tokens, done.num_generation_tokens
            )
            self._stat_logger.log_if_due()

    def _account(self, outputs: EngineCoreOutputs, stopped_ids: list[str]) -> None:
        """Tells admission who got a first token, and who is gone."""
        ended = list(stopped_ids)
        for output in outputs.outputs:
            if output.finish_reason is not None:
                ended.append(output.request_id)
            elif output.new_token_ids:
                self._admission.on_first_token(output.request_id)
        for request_id in ended:
            self._admission.on_end(request_id, outputs.timestamp)
        if ended:
            self._forget_done()

    def _forget_done(self) -> None:
        for key in [key for key, stream in self._streams.items() if stream.is_done]:
            del self._streams[key]

    def _abort_internal(self, internal_ids: list[str]) -> None:
        core_ids = self.output_processor.abort_requests(internal_ids)
        now = time.time()
        self.metrics.on_aborted(core_ids, now)
        for core_id in core_ids:
            self._admission.on_end(core_id, now)
        self._tell_core_to_abort(core_ids)
        self._forget_done()

    def _tell_core_to_abort(self, core_ids: list[str]) -> None:
        if core_ids and not self.errored:
            self._client.abort_requests(core_ids)

    def _on_dead(self, error: EngineDeadError) -> None:
        """Tells everyone who waits, with an error of their own each."""
        self._dead_error = self._dead_error or error
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(EngineDeadError(str(error)))


AsyncLLMEngine = AsyncLLM


def make_client(config: EngineConfig, home: EngineHome, step_timeout_s: float) -> EngineCoreClient:
    """The engine loop in the home that was chosen. Blocks while the model loads."""
    if home == "auto":
        home = "thread" if (os.cpu_count() or 1) <= _FEW_CORES else "process"
    if home == "process":
        from quire.engine.process_home import ProcessHome

        return ProcessHome(config, step_timeout_s)
    from quire.engine.core import EngineCore
    from quire.engine.thread_home import ThreadHome

    return ThreadHome(lambda: EngineCore(config), step_timeout_s)
