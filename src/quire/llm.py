"""`LLM`: offline inference for a batch of prompts, the class that most scripts use.

    from quire import LLM, SamplingParams
    llm = LLM("path/or/hub-id")
    for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8)):
        print(output.outputs[0].text)

Drives an `LLMEngine` on its callers' threads. Names and behaviour are vLLM's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quire.config.engine_args import EngineArgs
from quire.frontend.offline.calls import (
    CallOptions,
    Calls,
    Loras,
    PromptAdapters,
    as_prompts,
    one_each,
)
from quire.frontend.offline.chats import (
    ChatOptions,
    ChatPrompts,
    chat_tokenization,
    with_image_settings,
)
from quire.frontend.offline.llm_engine import LLMEngine
from quire.frontend.offline.pooling import PoolingMethods
from quire.frontend.offline.progress_bar import Progress, counted
from quire.frontend.offline.shared_loop import Ticket
from quire.frontend.offline.turn_lock import TurnLock
from quire.frontend.unsupported import UnsupportedTransfers
from quire.inputs import PromptType, TokensPrompt
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.system.deferred_signals import deferred_signals, with_signals_deferred

if TYPE_CHECKING:
    from quire.beam_search import BeamSearchOutput, BeamSearchParams

Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one for each; None: the model's defaults."""


class LLM(PoolingMethods, UnsupportedTransfers):
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
        self._calls = Calls(self.llm_engine)
        self.request_counter = self._calls.request_counter
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
        options = CallOptions(priority, tokenization_kwargs, lora_request, prompt_adapter_request)
        return self._run(every, sampling_params, options, use_tqdm)

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
        overrides that. Outputs are in the order of the conversations. Raises RequestError that
        names an invalid conversation, and runs none then.
        """
        chat = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        prompts = self.renderer.render_chat(messages, chat)
        options = CallOptions(
            priority, chat_tokenization(tokenization_kwargs), lora_request, prompt_adapter_request
        )
        return self._run(prompts, sampling_params, options, use_tqdm, "messages")

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
        """The prompts for which `chat` would generate, as text and token ids. Raises RequestError
        for an invalid conversation."""
        chat = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        prompts = self.renderer.render_chat(messages, chat)
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
        """Queue all requests or none for `wait_for_completion`; returns their ids. Raises
        RequestError for an invalid prompt."""
        every = with_image_settings(as_prompts(prompts), mm_processor_kwargs)
        options = CallOptions(priority, tokenization_kwargs, lora_request, prompt_adapter_request)
        return self._enqueue(lambda: every, sampling_params, options, use_tqdm)

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
        """Queue all conversations or none for `wait_for_completion`; returns their ids. Raises
        RequestError for an invalid conversation."""
        chat = ChatOptions(
            chat_template, chat_template_content_format, add_generation_prompt,
            continue_final_message, tools, chat_template_kwargs, mm_processor_kwargs,
        )  # fmt: skip
        options = CallOptions(
            priority, chat_tokenization(tokenization_kwargs), lora_request, prompt_adapter_request
        )
        render = partial(self.renderer.render_chat, messages, chat)
        return self._enqueue(render, sampling_params, options, use_tqdm, "messages")

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
        from quire.frontend.beam_offline import search_beams

        every = as_prompts(prompts)
        options = CallOptions(priority, lora=lora_request, prompt_adapter=prompt_adapter_request)
        return search_beams(self._calls, every, params, options, use_tqdm, concurrency_limit)

    def close(self) -> None:
        """Free the model. Idempotent."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[PromptType],
        sampling_params: Params,
        options: CallOptions,
        use_tqdm: Progress,
        name: str = "prompts",
    ) -> list[RequestOutput]:
        """Add all requests and wait for their outputs. `name`: as in `_add`."""
        if prompts:
            self.llm_engine.refuse_to_wait()
        tickets = self._add(prompts, len(prompts), sampling_params, options, name)
        return self._collect(tickets, use_tqdm)

    def _enqueue(
        self,
        render: Callable[[], Sequence[PromptType]],
        sampling_params: Params,
        options: CallOptions,
        use_tqdm: Progress,
        name: str = "prompts",
    ) -> list[str]:
        title = f"Rendering {'prompts' if name == 'prompts' else 'conversations'}"
        tickets: list[Ticket] = []
        with deferred_signals(undo=lambda: self._withdraw(tickets)):
            prompts = render()
            with counted(prompts, use_tqdm, title) as bar:
                tickets = self._add(bar, len(prompts), sampling_params, options, name)
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
        self._calls.abort(tickets)

    def _add(
        self,
        prompts: Iterable[PromptType],
        count: int,
        sampling_params: Params,
        options: CallOptions,
        name: str,
    ) -> list[Ticket]:
        """Add all requests or none. `name`: the caller's argument with the prompts."""
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        finals = []
        for one in one_each("params", params, SamplingParams, count):
            finals.append(one.clone())
            finals[-1].output_kind = RequestOutputKind.FINAL_ONLY
        params_name = None if isinstance(params, SamplingParams) else "sampling_params"
        return self._calls.submit(prompts, finals, options, name, params_name)

    def _collect(self, tickets: list[Ticket], use_tqdm: Progress) -> list[RequestOutput]:
        return cast("list[RequestOutput]", self._calls.collect(tickets, use_tqdm))
