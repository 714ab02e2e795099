"""`LLMEngine`: requests in, outputs out, one step at a time, on the caller's thread.

Used by `LLM` and by programs that call `step` themselves. Composes the input processor, the core
and the output processor, and lets several threads share them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from quire.config.engine_args import EngineArgs
from quire.config.records import EngineConfig, ModelConfig
from quire.config.resolve import Usage
from quire.core.engine_core import EngineCore
from quire.errors import ConfigError, EngineDeadError, QuireError
from quire.frontend.arguments import refuse_arguments, request_id_list, wants_special_tokens
from quire.frontend.input_processor import EngineInput, InputProcessor
from quire.frontend.observers.stat_logger import LoggingStatLogger
from quire.frontend.offline.interrupts import deferred_interrupt
from quire.frontend.offline.turn_lock import TurnLock
from quire.frontend.output_processor import OutputProcessor
from quire.frontend.request_record import Sink
from quire.inputs import PromptType
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.tokenizer import Tokenizer
from quire.tokenizer.for_model import load_tokenizer


class LLMEngine:
    """One model, ready to serve. Threads may share it: each call waits for the one under way.

    Ctrl+C is raised at the end of a call, so that the engine goes on working after it. Calls
    after `shutdown` raise EngineDeadError.
    """

    def __init__(self, config: EngineConfig, engine_core: EngineCore | None = None) -> None:
        """Loads tokenizer and model. Raises ConfigError, ModelError or BackendError."""
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        self.engine_core = engine_core or EngineCore(config)
        self.input_processor = InputProcessor(config, self.tokenizer)
        self._stat_logger = LoggingStatLogger(config) if config.observability.log_stats else None
        self.output_processor = OutputProcessor(
            self.tokenizer,
            config.scheduler.stream_interval,
            () if self._stat_logger is None else (self._stat_logger,),
        )
        self._lock = TurnLock()
        self._is_shut_down = False
        self._untaken: list[RequestOutput] = []
        """Of a step that Ctrl+C kept from returning."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, usage: Usage = "llm") -> LLMEngine:
        """Settles the configuration, then loads."""
        return cls(build_engine_config(engine_args, usage))

    @property
    def model_config(self) -> ModelConfig:
        """What is being served."""
        return self.config.model

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: None = None,
        priority: int = 0,
        *,
        sink: Sink | None = None,
    ) -> str:
        """Validates and queues a request; returns its id. Raises RequestError.

        Outputs go to `sink`, on the thread that steps, instead of being returned by `step`.
        """
        refuse_arguments(lora_request=lora_request, trace_headers=trace_headers)
        request = self.input_processor.process(
            request_id,
            prompt,
            params,
            arrival_time=arrival_time,
            priority=priority,
            add_special_tokens=wants_special_tokens(tokenization_kwargs),
        )
        with self.turn():
            self._add(request, sink)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Runs one step; what it brought, by the requests' `output_kind`."""
        with deferred_interrupt() as raise_if_interrupted, self._lock:
            self._refuse_after_shutdown()
            self._untaken += self._step()
            raise_if_interrupted()
            outputs, self._untaken = self._untaken, []
            return outputs

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Ends requests; unknown ids mean nothing. Only a `sink` gets a last output."""
        ids = request_id_list(request_ids)
        with deferred_interrupt(), self._lock:
            self.engine_core.abort_requests(self.output_processor.abort_requests(ids))

    def abort_all(self) -> None:
        """Ends every request, for a caller that will not come back for the rest."""
        with deferred_interrupt(), self._lock:
            records = self.output_processor.records()
            self.engine_core.abort_requests(self.output_processor.abort(records))

    def fail_all(self, error: QuireError) -> None:
        """Ends every request; each `sink` is told why."""
        with deferred_interrupt(), self._lock:
            self.engine_core.abort_requests(self.output_processor.fail(error))

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._untaken) or self.output_processor.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Outputs still being made: a request of `n` outputs counts `n` times."""
        return self.output_processor.get_num_unfinished_requests()

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ConfigError if it was left out."""
        if self.tokenizer is None:
            raise ConfigError("there is no tokenizer: the engine has skip_tokenizer_init=True")
        return self.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prompts; False while requests are running."""
        with self.turn():
            return bool(self.engine_core.commands["reset_prefix_cache"]())

    def do_log_stats(self) -> None:
        """Logs the statistics line now, if there is one."""
        with self.turn():
            if self._stat_logger is not None:
                self._stat_logger.log()

    def shutdown(self) -> None:
        """Frees the model, after the step under way. Idempotent."""
        with deferred_interrupt(), self._lock:
            self._is_shut_down = True
            self.engine_core.shutdown()

    @contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """This thread's turn to use the engine; others wait, and so does Ctrl+C, which the
        function given raises. Raises EngineDeadError after `shutdown`."""
        with deferred_interrupt() as raise_if_interrupted, self._lock:
            self._refuse_after_shutdown()
            yield raise_if_interrupted

    def _refuse_after_shutdown(self) -> None:
        if self._is_shut_down:
            raise EngineDeadError("the engine was shut down; make a new one")

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

    def _step(self) -> list[RequestOutput]:
        if not self.engine_core.has_unfinished_requests():
            return []
        outputs = self.engine_core.step()
        done = self.output_processor.process_outputs(outputs)
        if done.aborts:
            self.engine_core.abort_requests(done.aborts)
        return done.request_outputs
