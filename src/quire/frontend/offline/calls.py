"""The requests of one call of `LLM`: `Calls` submits them and waits for their outputs.

Arguments that have one value for all prompts, or one for each, are `CallOptions`. Errors name the
argument.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.adapters.request import ARGUMENTS
from quire.errors import PromptError, RequestError, quoted
from quire.frontend.arguments import RequestOptions, located
from quire.frontend.offline.progress_bar import Progress, ProgressBar
from quire.frontend.offline.shared_loop import SharedLoop, Ticket
from quire.frontend.request_record import AnyOutput
from quire.inputs import PromptType
from quire.params import SamplingParams
from quire.protocol.pooling_params import PoolingParams
from quire.system.deferred_signals import deliver_signals

if TYPE_CHECKING:
    from quire.frontend.offline.llm_engine import LLMEngine

Loras = LoRARequest | Sequence[LoRARequest | None] | None
PromptAdapters = PromptAdapterRequest | Sequence[PromptAdapterRequest | None] | None
"""One for all prompts, or one for each; None: none."""


def from_column(name: str, value: Any) -> Any:
    """A column of pandas, polars or Arrow, or an array of NumPy, as a list; others unchanged.
    Raises RequestError for a whole table, which would be a list of its columns."""
    if hasattr(value, "columns"):
        raise wrong(name, type(value).__name__, "a column of the table, such as table['text']")
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow, polars and pandas, NumPy
        if not isinstance(value, type) and callable(getattr(value, method, None)):
            return getattr(value, method)()
    return value


def as_prompts(prompts: Any) -> list[PromptType]:
    """Return one prompt or several as a list: a text, a dict or a list of token ids is one prompt;
    a column of a table has several. Raises RequestError."""
    if isinstance(prompts, (str, dict)):
        return [cast(PromptType, prompts)]
    prompts = from_column("prompts", prompts)
    if isinstance(prompts, (bytes, bytearray, memoryview)) or not isinstance(prompts, Iterable):
        raise PromptError(
            "prompts must be a text, a list of token ids, a dict with prompt or "
            f"prompt_token_ids, or a list of these, got {quoted(prompts)}",
            parameter="prompts",
            value=prompts,
        )
    found = list(prompts)
    if set(map(type, found)) == {int}:
        return [found]
    return found


def one_each(name: str, value: Any, kind: type | tuple[type, ...], count: int) -> list[Any]:
    """Return one value per prompt, from a single value or a list. Raises TypeError or
    RequestError."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or not all(isinstance(each, kind) for each in value):
        shown = kind[0] if isinstance(kind, tuple) else kind
        raise TypeError(
            f"{name} must be of type {shown.__name__}, or a list of these, got {quoted(value)}"
        )
    if len(value) != count:
        raise RequestError(
            f"The lengths of prompts ({count}) and {name} ({len(value)}) must be the same.",
            parameter=name,
        )
    return list(value)


def _adapter_each(value: Any, kind: type, count: int) -> list[Any]:
    if value is None or isinstance(value, kind):
        return [value] * count
    return one_each(ARGUMENTS[kind], value, (kind, type(None)), count)


def wrong(name: str, value: object, what: str) -> RequestError:
    """The error for an argument of another type."""
    return RequestError(f"{name} must be {what}, got {quoted(value)}", parameter=name, value=value)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of the requests of one call: each has one value for all prompts, or one for
    each."""

    priority: int | Sequence[int] | None = None
    tokenization: Mapping[str, Any] | None = None
    """The value of `tokenization_kwargs`."""
    lora: Loras = None
    prompt_adapter: PromptAdapters = None

    def each(self, count: int, engine: LLMEngine) -> Iterator[RequestOptions]:
        """The options of each prompt. Raises TypeError or RequestError."""
        priorities = one_each("priority", 0 if self.priority is None else self.priority, int, count)
        loras = _adapter_each(self.lora, LoRARequest, count)
        adapters = _adapter_each(self.prompt_adapter, PromptAdapterRequest, count)
        return (
            RequestOptions(
                priority=priority,
                tokenization=engine.tokenization(self.tokenization),
                lora=lora,
                prompt_adapter=adapter,
            )
            for priority, lora, adapter in zip(priorities, loras, adapters, strict=True)
        )


class Calls:
    """Submits the requests of an `LLM`, and waits for their outputs. Any thread may call."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.loop = SharedLoop(engine)
        self.request_counter = itertools.count()
        """Source of request ids."""

    def submit(
        self,
        prompts: Iterable[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        options: CallOptions,
        name: str = "prompts",
        params_name: str | None = None,
    ) -> list[Ticket]:
        """Add all requests, or none if one is invalid or a signal handler raises.

        `name` and `params_name` are the caller's names of the arguments with prompts and
        parameters; `params_name` is None if all requests share their parameters.
        """
        count = len(params)
        each = zip(prompts, params, options.each(count, self.engine), strict=True)
        tickets: list[Ticket] = []
        try:
            for index, (prompt, its_params, its_options) in enumerate(each):
                num_outputs = its_params.n if isinstance(its_params, SamplingParams) else 1
                ticket = Ticket(str(next(self.request_counter)), num_outputs)
                with located(name, index, count, params=params_name):
                    self.engine.submit(ticket.request_id, prompt, its_params, its_options, ticket)
                tickets.append(ticket)
                deliver_signals()
        except BaseException:
            self.abort(tickets)
            raise
        return tickets

    def collect(self, tickets: Sequence[Ticket], use_tqdm: Progress) -> list[AnyOutput]:
        """Wait for the outputs. Any exception aborts the unfinished requests."""
        try:
            with ProgressBar(use_tqdm, sum(ticket.num_outputs for ticket in tickets)) as bar:
                return self.loop.collect(tickets, bar.add)
        except BaseException:
            self.abort(tickets)
            raise

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Abort these requests."""
        self.engine.abort_request([ticket.request_id for ticket in tickets])
