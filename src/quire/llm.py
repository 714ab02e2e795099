"""`LLM`: offline inference for a batch of prompts, the class that most scripts use.

    from quire import LLM, SamplingParams
    llm = LLM("path/or/hub-id")
    for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8)):
        print(output.outputs[0].text)

Drives an `LLMEngine` on its callers' threads. Names and behaviour are vLLM's.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quire.config.engine_args import EngineArgs
from quire.frontend.arguments import UnsupportedTransfers, located
from quire.frontend.offline.llm_arguments import (
    ChatOptions,
    GivenAdapters,
    Loras,
    PromptAdapters,
    as_prompts,
    chat_tokenization,
    one_each,
    with_image_settings,
)
from quire.frontend.offline.llm_control import LLMControl
from quire.frontend.offline.llm_engine import LLMEngine
from quire.frontend.offline.pooling import PoolingMethods
from quire.frontend.offline.progress_bar import Progress, ProgressBar, counted
from quire.frontend.offline.prompts import ChatPrompts
from quire.frontend.offline.shared_loop import SharedLoop, Ticket
from quire.frontend.offline.turn_lock import TurnLock
from quire.inputs import PromptType, TokensPrompt
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.system.deferred_signals import (
    deferred_signals,
    deliver_signals,
    with_signals_deferred,
)

if TYPE_CHECKING:
    from quire.beam_search import BeamSearchOutput, BeamSearchParams

Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one for each; None: the model's defaults."""


class LLM(LLMControl, PoolingMethods, UnsupportedTransfers):
    """One model in this process; `close`, `with` or dropping the last reference frees the memory.

    Threads may share it: requests of concurrent calls share the steps, and each call returns its
    own outputs. After `close`, running and later calls raise EngineDeadError. While another thread
    lets the engine sleep, calls wait for its `wake_up`; where no other thread could call it, they
    raise ConfigError.
    """

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        """Load a model: a directory, a hub id, or None for the bundled demo model.

        Keywords are those of `EngineArgs`. Raises ConfigError, ModelError or BackendError.
        """
        engine_args.setdefault("disable_log_stats", True)
        self._start(EngineArgs(model=model, **engine_args))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Create an LLM from `EngineArgs`."""
        llm = cls.__new__(cls)
        llm._start(engine_args)
        return llm

    def _start(self, engine_args: EngineArgs) -> None:
        self.llm_engine = LLMEngine.from_engine_args(engine_args)
        self.request_counter = itertools.count()
        """Source of request ids."""
        self._loop = SharedLoop(self.llm_engine)
        self._lock = TurnLock()
        self._enqueued: dict[int, list[Ticket]] = {}
        """Requests of `enqueue` that are not collected yet, by the thread that enqueued them.
        Guarded by the lock."""
        self.renderer = ChatPrompts(self.llm_engine)

    @with_signals_deferred
    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts; returns outputs in the prompts' order.

        `sampling_params`: one for all, or one for each; None: the model's defaults. `lora_request`:
        the adapter of all, or one for each; None: the base model. `prompt_adapter_request`: the
        same for prompt adapters. `priority` is used with the scheduling policy `priority`. If a
        prompt is invalid, raises RequestError that names it (`prompts[13]`), and runs none. To skip
        invalid prompts, call `enqueue` for each and collect the others with `wait_for_completion`.
        """
        every = with_image_settings(as_prompts(prompts), mm_processor_kwargs)
        adapters = GivenAdapters(lora_request, prompt_adapter_request)
        if every:
            self.llm_engine.refuse_to_wait()
        tickets = self._add(
            every, len(every), sampling_params, priority, tokenization_kwargs, adapters
        )
        return self._collect(tickets, use_tqdm)

    @with_signals_deferred
    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation, or of each of several.

        A conversation is a list of `{"role": ..., "content": ...}`. The prompt is encoded without
        adding special tokens, because the template has written them, unless `tokenization_kwargs`
        overrides that.
        """
        options = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        prompts = self.renderer.render_chat(messages, options)
        tokenization = chat_tokenization(tokenization_kwargs)
        adapters = GivenAdapters(lora_request, prompt_adapter_request)
        if prompts:
            self.llm_engine.refuse_to_wait()
        tickets = self._add(
            prompts, len(prompts), sampling_params, priority, tokenization, adapters, "messages"
        )
        return self._collect(tickets, use_tqdm)

    @with_signals_deferred
    def preprocess_chat(
        self,
        messages: Sequence[Any],
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[TokensPrompt]:
        """The prompts for which `chat` would generate, as text and token ids."""
        options = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        prompts = self.renderer.render_chat(messages, options)
        return self.renderer.encode(prompts, chat_tokenization(tokenization_kwargs))

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Progress = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[str]:
        """Queue all requests or none for `wait_for_completion`; returns their ids."""
        every = with_image_settings(as_prompts(prompts), mm_processor_kwargs)
        adapters = GivenAdapters(lora_request, prompt_adapter_request)
        return self._enqueue(
            lambda: every, use_tqdm, sampling_params, priority, tokenization_kwargs, adapters
        )

    def enqueue_chat(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[str]:
        """Queue all conversations or none for `wait_for_completion`; returns their ids."""
        options = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        tokenization = chat_tokenization(tokenization_kwargs)
        adapters = GivenAdapters(lora_request, prompt_adapter_request)
        render = partial(self.renderer.render_chat, messages, options)
        return self._enqueue(
            render, use_tqdm, sampling_params, priority, tokenization, adapters, "messages"
        )

    @with_signals_deferred
    def wait_for_completion(
        self, output_type: type[RequestOutput] | None = None, *, use_tqdm: Progress = True
    ) -> list[RequestOutput]:
        """Wait for the requests that this thread has enqueued, or if it has none, for those of all
        threads; returns outputs in the order of `enqueue`. `output_type` can only be
        `RequestOutput`."""
        if output_type not in (None, RequestOutput):
            raise TypeError(f"output_type must be RequestOutput or None, got {output_type!r}")
        if any(ticket.is_open for ticket in self._uncollected(take=False)):
            self.llm_engine.refuse_to_wait()  # an error here keeps them
        return self._collect(self._uncollected(take=True), use_tqdm)

    @with_signals_deferred
    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
        prompt_adapter_request: PromptAdapters = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[BeamSearchOutput]:
        """The best continuations of each prompt by beam search; returns outputs in the prompts'
        order. `priority` is used with the scheduling policy `priority`.

        `concurrency_limit`: number of prompts searched at once; None: all. If a prompt is invalid,
        raises RequestError and runs none.
        """
        from quire.frontend.offline.prompts import search_beams

        ids = map(str, self.request_counter)
        every = list(zip(ids, as_prompts(prompts), strict=False))
        engine, loop = self.llm_engine, self._loop
        adapters = GivenAdapters(lora_request, prompt_adapter_request)
        return search_beams(
            engine, loop, every, params, use_tqdm, concurrency_limit, priority, adapters=adapters
        )

    def close(self) -> None:
        """Free the model. Idempotent."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _enqueue(
        self,
        render: Callable[[], Sequence[PromptType]],
        use_tqdm: Progress,
        sampling_params: Params,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        adapters: GivenAdapters,
        name: str = "prompts",
    ) -> list[str]:
        title = f"Rendering {'prompts' if name == 'prompts' else 'conversations'}"
        options = (sampling_params, priority, tokenization_kwargs, adapters, name)
        tickets: list[Ticket] = []
        with deferred_signals(undo=lambda: self._withdraw(tickets)):
            prompts = render()
            with counted(prompts, use_tqdm, title) as bar:
                tickets = self._add(bar, len(prompts), *options)
            with self._lock:
                self._enqueued.setdefault(threading.get_ident(), []).extend(tickets)
            return [ticket.request_id for ticket in tickets]

    def _uncollected(self, *, take: bool) -> list[Ticket]:
        """The requests that this thread has enqueued, or if it has none, those of all threads, in
        order. `take`: they are not returned again."""
        with self._lock:
            mine = threading.get_ident()
            threads = [mine] if mine in self._enqueued else [*self._enqueued]
            found = [ticket for thread in threads for ticket in self._enqueued[thread]]
            for thread in threads if take else ():
                del self._enqueued[thread]
        return sorted(found, key=lambda ticket: int(ticket.request_id))

    def _withdraw(self, tickets: list[Ticket]) -> None:
        """Abort requests whose ids `enqueue` could not return."""
        with self._lock:
            mine = self._enqueued.get(threading.get_ident(), [])
            mine[:] = [one for one in mine if one not in tickets]
        self.llm_engine.abort_request([ticket.request_id for ticket in tickets])

    def _add(
        self,
        prompts: Iterable[PromptType],
        count: int,
        sampling_params: Params,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        adapters: GivenAdapters,
        name: str = "prompts",
    ) -> list[Ticket]:
        """Add all requests, or none if one is invalid or a signal handler raises. `name`: name of
        the caller's argument with the prompts."""
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params_of = one_each("params", params, SamplingParams, count)
        priority_of = one_each("priority", 0 if priority is None else priority, int, count)
        adapter_of = adapters.each(count)
        params_name = None if isinstance(params, SamplingParams) else "sampling_params"
        tickets: list[Ticket] = []
        try:
            for index, (prompt, its_params, its_priority, adapter) in enumerate(
                zip(prompts, params_of, priority_of, adapter_of, strict=True)
            ):
                ticket = Ticket(str(next(self.request_counter)), its_params.n)
                final = its_params.clone()
                final.output_kind = RequestOutputKind.FINAL_ONLY
                with located(name, index, count, params=params_name):
                    self.llm_engine.add_request(
                        ticket.request_id,
                        prompt,
                        final,
                        priority=its_priority,
                        tokenization_kwargs=tokenization_kwargs,
                        **adapter,
                        sink=ticket,
                    )
                tickets.append(ticket)
                deliver_signals()
        except BaseException:
            self.llm_engine.abort_request([ticket.request_id for ticket in tickets])
            raise
        return tickets

    def _collect(self, tickets: list[Ticket], use_tqdm: Progress) -> list[RequestOutput]:
        """Wait for the outputs. Any exception aborts the unfinished requests."""
        try:
            with ProgressBar(use_tqdm, sum(ticket.num_outputs for ticket in tickets)) as bar:
                return cast("list[RequestOutput]", self._loop.collect(tickets, bar.add))
        except BaseException:
            self.llm_engine.abort_request([ticket.request_id for ticket in tickets])
            raise
