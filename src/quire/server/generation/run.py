"""One HTTP request's generation: admission, the requests to the engine, and the merged outputs of
its prompts. Completions and chats both use it; it knows neither's format.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from quire.adapters import AnyAdapterRequest, by_kind
from quire.errors import RequestError
from quire.frontend.arguments import RequestOptions, check_data_parallel_rank, located
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.server.http.problems import HttpError, unavailable
from quire.server.requests.limits import params_in_room
from quire.server.requests.prompts import PreparedPrompt, engine_input, lists_work
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput
    from quire.frontend.online.online_requests import OnlineRequests
    from quire.frontend.online.request_stream import RequestStream

TIMEOUT_HEADER = "x-request-timeout"
DATA_PARALLEL_HEADER = "x-data-parallel-rank"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_SUBMITTED_AT_ONCE = 1 << 15
"""Tokens of core requests, plus 64 for each, that are added before other tasks may run."""
_GRAMMAR_SIZE = 1 << 12
"""The work of trying a grammar: on a thread, because a short one may take long."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time limit of a request."""

    seconds: float
    at: float
    """On the event loop's clock."""

    def error(self) -> HttpError:
        """The error message for the caller."""
        return HttpError(
            unavailable(f"The request was not finished within its deadline of {self.seconds:g} s.")
        )


def deadline_of(request: Request, longest_s: float) -> Deadline:
    """The server's deadline, or an earlier one from the caller. Raises RequestError."""
    seconds, given = longest_s, request.headers.get(TIMEOUT_HEADER)
    if given is not None:
        try:
            asked = float(given)
        except ValueError:
            asked = math.nan
        if not asked > 0:
            raise RequestError(
                f"X-Request-Timeout must be a positive number of seconds, got {given[:50]!r}",
                parameter="X-Request-Timeout",
            )
        seconds = min(seconds, asked)
    return Deadline(seconds, asyncio.get_running_loop().time() + seconds)


def chosen_engine(request: Request, num_engines: int) -> int | None:
    """The engine that the caller has chosen with vLLM's header; None: any. Raises RequestError for
    a header that is not the number of an engine. (vLLM ignores one that is not a number.)"""
    given = request.headers.get(DATA_PARALLEL_HEADER)
    if given is None:
        return None
    if not _NUMBER.fullmatch(given):
        raise RequestError(
            f"X-data-parallel-rank must be the number of an engine, from 0 to {num_engines - 1}, "
            f"got {given[:50]!r}",
            parameter="X-data-parallel-rank",
        )
    check_data_parallel_rank(int(given), num_engines)
    return int(given)


def params_work(params: SamplingParams, num_prompts: int = 1) -> int:
    """The size of checking parameters for so many prompts, and of trying their grammar."""
    grammar = 0 if params.structured_outputs is None else _GRAMMAR_SIZE
    return grammar + num_prompts * lists_work(params)


@dataclass(frozen=True, slots=True)
class Submission:
    """The engine's input for one request."""

    model: ServedModel
    prompts: Sequence[PreparedPrompt]
    params: SamplingParams
    request_id: str
    deadline: Deadline
    priority: int
    trace_headers: Mapping[str, str]
    adapter: AnyAdapterRequest | None
    engine: int | None
    """The one of several engines that the caller has chosen."""

    @property
    def options(self) -> RequestOptions:
        """The options that all prompts share."""
        adapters = {} if self.adapter is None else by_kind(self.adapter)
        return RequestOptions(priority=self.priority, trace_headers=self.trace_headers, **adapters)

    def inputs(self) -> list[EngineInput]:
        """A request of the engine for each prompt. Raises RequestError."""
        max_model_len = self.model.config.model.max_model_len
        inputs, options = [], self.options
        for index, prompt in enumerate(self.prompts):
            name = f"{self.request_id}-{index}"
            with located("prompt", index, len(self.prompts)):
                fitted = params_in_room(self.params, len(prompt.token_ids), max_model_len)
                given = prompt.for_engine()
                inputs.append(engine_input(self.model, name, given, fitted, options))
        return inputs


class Generation:
    """The engine's work for one HTTP request: one stream for each of its prompts.

    Invariant: `close` always runs at the end of the request; after it, the engine drops the
    request's state within one step.
    """

    def __init__(self, model: ServedModel, requests: OnlineRequests, deadline: Deadline) -> None:
        self.model = model
        self._requests = requests
        self._deadline = deadline
        self._wake_up = asyncio.Event()
        self._streams: list[RequestStream] = []
        self._is_closed = False
        self._is_late = False
        self._closers: list[Callable[[], object]] = []
        self.engine: int | None = None
        """The one of several engines that the caller has chosen."""
        self.named: Callable[[RequestError], RequestError] = lambda error: error
        """Renames the fields in an error to those of the API."""
        model.num_generating += 1
        self._timer = asyncio.get_running_loop().call_at(deadline.at, self._on_deadline)

    @classmethod
    async def start(cls, asked: Submission) -> Generation:
        """Admits all prompts or none. Raises RequestError, CapacityError, EngineDeadError."""
        prompts, params = asked.prompts, asked.params
        size = sum(len(prompt.token_ids) // 16 + 32 + 8 * params.n for prompt in prompts)
        size += sum(one.embeds.nbytes // 64 for one in prompts if one.embeds is not None)
        size += params_work(params, len(prompts))
        inputs = await asked.model.pool.run(size, asked.inputs)
        return await cls.of_inputs(asked.model, inputs, asked.deadline, asked.engine)

    async def _submit(self, inputs: Sequence[EngineInput], *, is_admitted: bool = False) -> None:
        """Passes the requests to the engine; other tasks run meanwhile if there are many.
        `is_admitted`: they continue requests that were admitted."""
        requests = self._requests
        admit = requests.let_in if is_admitted else requests.admit
        self._streams = admit(inputs, self._wake_up)
        size = 0
        for stream in self._streams:
            if stream.is_done:
                continue  # ended meanwhile
            self._requests.begin(stream)
            for core_request in stream.record.input.core_requests:
                if stream.is_done:  # its caller does not wait any more
                    break
                core_request.data_parallel_rank = self.engine
                self._requests.hand_over(core_request)
                size += 64 + len(core_request.prompt_token_ids)
                if size > _SUBMITTED_AT_ONCE:
                    size = 0
                    await self.model.pool.turn()

    async def outputs(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        """Yields the new outputs since the last time, by index of the prompt, until all are
        finished or the generation is closed. Raises the error that ended it otherwise."""
        open_streams = dict(enumerate(self._streams))
        while open_streams and not self._is_closed:
            batch = []
            for index, stream in list(open_streams.items()):
                is_done = stream.is_done
                try:
                    output = stream.take()
                except RequestError as error:
                    raise self.named(error) from None
                if output is not None:
                    batch.append((index, output))
                if is_done:
                    del open_streams[index]
            if batch:
                yield batch
            elif open_streams:
                await self._wait_for_news()

    @classmethod
    async def of_inputs(
        cls,
        model: ServedModel,
        inputs: Sequence[EngineInput],
        deadline: Deadline,
        engine: int | None = None,
    ) -> Generation:
        """Admits validated requests or none. Raises CapacityError, EngineDeadError."""
        generation = cls(model, model.live_engine().requests, deadline)
        generation.engine = engine
        try:
            await generation._submit(inputs)
        except BaseException:
            generation.close()
            raise
        return generation

    async def final_outputs(self) -> list[RequestOutput]:
        """The last output of each prompt, in order."""
        finals: dict[int, RequestOutput] = {}
        async for batch in self.outputs():
            finals.update(batch)
        return [finals[index] for index in sorted(finals)]

    def abort(self) -> None:
        """Ends its requests; the last outputs say so."""
        self._requests.abort_streams(self._streams)

    def close(self) -> None:
        """Frees everything now. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._timer.cancel()
            self.model.num_generating -= 1
            self._requests.close(self._streams)
            for closer in self._closers:
                closer()
            self._wake_up.set()

    def on_close(self, closer: Callable[[], object]) -> None:
        """Has a function called when the request ends. Called before it can."""
        self._closers.append(closer)

    async def _wait_for_news(self) -> None:
        if not self._is_late:
            self._wake_up.clear()
            await self._wake_up.wait()
        if self._is_late and not self._is_closed:
            raise self._deadline.error()

    def _on_deadline(self) -> None:
        self._is_late = True
        self._wake_up.set()
