"""`LLM`: a model and a batch of prompts, offline. What most scripts use.

    from quire import LLM, SamplingParams
    llm = LLM("path/or/hub-id")
    for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8)):
        print(output.outputs[0].text)

Drives an `LLMEngine` on the caller's thread. Names and behaviour are vLLM's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from quire.chat.job import ChatInput, ContentFormat
from quire.config.engine_args import EngineArgs
from quire.core.interrupts import deferred_interrupt
from quire.errors import RequestError
from quire.frontend.arguments import refuse_arguments
from quire.frontend.llm_engine import LLMEngine
from quire.inputs import PromptType
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.chat.renderer import ChatRenderer

Progress = bool | Callable[..., Any]
"""Whether to show a progress bar, or what makes one (tqdm's signature)."""


class LLM:
    """One model in this process. Owned by one thread; `close` (or `with`) frees the memory."""

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        """Loads a model: a directory, a hub id, or None for the bundled demo model.

        Keywords are those of `EngineArgs`. Raises ConfigError, ModelError or BackendError.
        """
        engine_args.setdefault("disable_log_stats", True)
        self._start(EngineArgs(model=model, **engine_args))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """From arguments that are collected already."""
        llm = cls.__new__(cls)
        llm._start(engine_args)
        return llm

    def _start(self, engine_args: EngineArgs) -> None:
        self.llm_engine = LLMEngine.from_engine_args(engine_args)
        self._numbers = itertools.count()
        self._unclaimed: list[RequestOutput] = []
        """Finished while other requests were waited for."""
        self._renderer: ChatRenderer | None = None

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Generates for all prompts; outputs in the prompts' order.

        `sampling_params`: one for all, or one each; None: the model's defaults. If one prompt
        is invalid, RequestError is raised and none is run.
        """
        refuse_arguments(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        ids = self.enqueue(
            prompts, sampling_params, priority=priority, tokenization_kwargs=tokenization_kwargs
        )
        return self._run(ids, use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generates the next message of one conversation, or of each of several.

        A conversation is a list of `{"role": ..., "content": ...}`.
        """
        refuse_arguments(lora_request=lora_request)
        if not messages:
            raise RequestError("messages cannot be empty", parameter="messages")
        is_single = isinstance(messages[0], dict)
        conversations = [messages] if is_single else messages
        renderer = self._chat_renderer()
        prompts = [
            renderer.render(
                ChatInput(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template=chat_template,
                    chat_template_kwargs=chat_template_kwargs,
                    content_format=_content_format(chat_template_content_format),
                )
            )
            for conversation in conversations
        ]
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            tokenization_kwargs={"add_special_tokens": False},
        )

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """Queues requests for `wait_for_completion`, all or none; returns their ids."""
        every = _as_prompts(prompts)
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params_of = _one_each("params", params, SamplingParams, len(every))
        priority_of = _one_each("priority", priority or 0, int, len(every))
        ids: list[str] = []
        try:
            for prompt, own_params, own_priority in zip(every, params_of, priority_of, strict=True):
                final = own_params.clone()
                final.output_kind = RequestOutputKind.FINAL_ONLY
                request_id = str(next(self._numbers))
                self.llm_engine.add_request(
                    request_id,
                    prompt,
                    final,
                    priority=own_priority,
                    tokenization_kwargs=tokenization_kwargs,
                )
                ids.append(request_id)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return ids

    def wait_for_completion(self, *, use_tqdm: Progress = True) -> list[RequestOutput]:
        """Runs everything that is queued; outputs in the order of queueing."""
        return self._run(None, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model recommends, over vLLM's defaults."""
        return SamplingParams.from_optional(**self.llm_engine.model_config.default_sampling_params)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prompts; False while requests are running."""
        return self.llm_engine.reset_prefix_cache()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        if self._renderer is not None:
            self._renderer.close()
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _chat_renderer(self) -> ChatRenderer:
        """Made at the first chat, and kept."""
        from quire.chat.renderer import ChatRenderer
        from quire.chat.templates import ChatTemplates

        if self._renderer is None:
            model, special_tokens = self.llm_engine.model_config, self.get_tokenizer().roles
            self._renderer = ChatRenderer(ChatTemplates.of_model(model, special_tokens))
        return self._renderer

    def _run(self, ids: Iterable[str] | None, use_tqdm: Progress) -> list[RequestOutput]:
        """Steps until everything is finished; whatever interrupts it aborts what is left."""
        engine = self.llm_engine
        outputs: list[RequestOutput] = []
        bar = _ProgressBar(use_tqdm, engine.get_num_unfinished_requests())
        try:
            with deferred_interrupt() as raise_if_interrupted:
                while engine.has_unfinished_requests():
                    for output in engine.step():
                        outputs.append(output)
                        bar.add(output)
                    raise_if_interrupted()
        except BaseException:
            engine.abort_all()
            raise
        finally:
            bar.close()
        outputs += self._unclaimed
        wanted = {output.request_id for output in outputs} if ids is None else set(ids)
        self._unclaimed = [output for output in outputs if output.request_id not in wanted]
        mine = [output for output in outputs if output.request_id in wanted]
        return sorted(mine, key=lambda output: int(output.request_id))


class _ProgressBar:
    """vLLM's bar: prompts done, and estimated tokens per second in and out."""

    def __init__(self, use_tqdm: Progress, total: int) -> None:
        self._bar: Any = None
        self._num_in = self._num_out = 0
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else _tqdm()
            self._bar = make(
                total=total,
                desc="Processed prompts",
                dynamic_ncols=True,
                postfix=_speeds(0.0, 0.0),
            )

    def add(self, output: RequestOutput) -> None:
        """Counts a finished request."""
        if self._bar is None:
            return
        num_outputs = len(output.outputs)
        self._num_in += len(output.prompt_token_ids or ()) * num_outputs
        self._num_out += sum(len(one.token_ids) for one in output.outputs)
        elapsed = self._bar.format_dict["elapsed"] or 1e-9
        self._bar.postfix = _speeds(self._num_in / elapsed, self._num_out / elapsed)
        self._bar.update(num_outputs)
        if self._bar.n == self._bar.total:
            self._bar.refresh()

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._bar is not None:
            self._bar.close()


def _tqdm() -> Callable[..., Any]:
    """Imported when it is needed: it takes as long to import as all of the engine."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    return cast("Callable[..., Any]", tqdm)


def _speeds(num_in: float, num_out: float) -> str:
    return f"est. speed input: {num_in:.2f} toks/s, output: {num_out:.2f} toks/s"


def _as_prompts(prompts: Any) -> list[PromptType]:
    """One prompt or several: a text, a dict or a list of token ids is one."""
    if isinstance(prompts, (str, dict)):
        return [cast(PromptType, prompts)]
    found = list(prompts)
    if found and all(type(item) is int for item in found):
        return [found]
    return found


def _content_format(choice: str) -> ContentFormat | None:
    if choice not in ("auto", "string", "openai"):
        raise RequestError(
            f"chat_template_content_format must be auto, string or openai, got {choice!r}",
            parameter="chat_template_content_format",
            value=choice,
        )
    return None if choice == "auto" else cast(ContentFormat, choice)


def _one_each(name: str, value: Any, kind: type, count: int) -> list[Any]:
    if isinstance(value, kind):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise RequestError(
            f"The lengths of prompts ({count}) and {name} ({len(values)}) must be the same.",
            parameter=name,
        )
    return values
