"""Arguments that the methods of all engines share: the options of a request, and `EngineInput`, the
validated request; checks, and the position of errors in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from quire.adapters.request import LoRARequest, PromptAdapterRequest, check_adapter
from quire.config.records import EngineConfig
from quire.errors import PromptError, RequestError, quoted
from quire.frontend.inputs.tokenization import AS_IT_IS, Tokenization
from quire.outputs import LateChunkingMetadata
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.protocol.pooling_params import PoolingParams

_MAX_TIME_S = 1e11
"""Upper limit of timestamps, a few thousand years after the epoch."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of a request in addition to its id, prompt and parameters.

    Engines make it of their methods' arguments, and the input processor checks it.
    """

    arrival_time: float | None = None
    """Seconds since the epoch; None: now."""
    priority: int = 0
    """Lower runs earlier under the `priority` policy."""
    tokenization: Tokenization = AS_IT_IS
    trace_headers: Mapping[str, str] | None = None
    """W3C `traceparent` of the caller's span."""
    prompt_text: str | None = None
    """The text of a prompt of token ids, for outputs."""
    lora: LoRARequest | None = None
    """None: the base model alone."""
    prompt_adapter: PromptAdapterRequest | None = None
    data_parallel_rank: int | None = None
    """The engine that computes the request, where there are several; None: any."""

    def check(self, config: EngineConfig) -> None:
        """Raises RequestError, and TypeError for adapters of a wrong type. The priority is checked
        with the parameters."""
        if self.arrival_time is not None:
            _check_time(self.arrival_time)
        if self.trace_headers is not None:
            _check_headers(self.trace_headers)
        if self.lora is not None:
            check_adapter(self.lora, LoRARequest, is_enabled=config.lora is not None)
        if self.prompt_adapter is not None:
            is_enabled = config.prompt_adapters is not None
            check_adapter(self.prompt_adapter, PromptAdapterRequest, is_enabled=is_enabled)

    def check_priority(self) -> None:
        """Raises RequestError unless the priority is an integer of 64 bits."""
        priority = self.priority
        is_int = isinstance(priority, int) and not isinstance(priority, bool)
        if not is_int or not -(2**63) <= priority < 2**63:
            raise RequestError(
                f"priority must be an integer that fits in 64 bits, got {quoted(priority)}.",
                parameter="priority",
                value=priority,
            )


PLAIN = RequestOptions()
"""The options of a request about which nothing was said."""


@dataclass(frozen=True, slots=True)
class EngineInput:
    """A validated request: what the core runs, and what the front end needs for its outputs."""

    request_id: str
    """The user's request id."""
    prompt: str | None
    """None if token ids were given."""
    prompt_token_ids: list[int]
    params: SamplingParams
    """Validated parameters of the whole request; neutral ones if it pools."""
    core_requests: list[EngineCoreRequest]
    """One for each of the `n` outputs, in order; or one for each piece of a long text that pools.
    Their ids are unique in this process."""
    arrival_time: float
    options: RequestOptions = PLAIN
    pooling_params: PoolingParams | None = None
    """None: the request generates."""
    late_chunks: LateChunkingMetadata | None = None
    """The pieces of the text that have vectors, if it is asked for them."""
    num_virtual_tokens: int = 0
    """Tokens of a prompt adapter, or rows of an encoder, which are before those of the prompt in
    `core_requests`."""

    @property
    def num_image_bytes(self) -> int:
        """Bytes of decoded images and sounds of each core request."""
        return sum(len(image.pixels) for image in self.core_requests[0].images)


def check_request_id(request_id: object) -> None:
    """Raises TypeError unless it is a string, and RequestError unless it is valid Unicode."""
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a string, got {type(request_id)}")
    try:
        request_id.encode("utf-8")
    except UnicodeEncodeError:
        message = f"request_id must be valid Unicode, got {quoted(request_id)}"
        raise RequestError(message, parameter="request_id", value=request_id) from None


def _check_time(arrival_time: object) -> None:
    is_number = isinstance(arrival_time, (int, float)) and not isinstance(arrival_time, bool)
    if not is_number or not 0 <= arrival_time < _MAX_TIME_S:  # type: ignore[operator]
        raise RequestError(
            f"arrival_time must be seconds since the epoch, got {quoted(arrival_time)}; leave it "
            "out to use the current time",
            parameter="arrival_time",
            value=arrival_time,
        )


def _check_headers(trace_headers: object) -> None:
    if not isinstance(trace_headers, Mapping) or not all(
        isinstance(text, str) for pair in trace_headers.items() for text in pair
    ):
        raise RequestError(
            f"trace_headers must be a mapping of strings, got {quoted(trace_headers)}",
            parameter="trace_headers",
        )


def request_id_list(request_ids: str | Iterable[str]) -> list[str]:
    """Return one id or several as a list. Raises TypeError for anything else."""
    if isinstance(request_ids, str):
        return [request_ids]
    with suppress(TypeError):
        ids = list(request_ids)
        if all(isinstance(request_id, str) for request_id in ids):
            return ids
    raise TypeError(f"request_ids must be a string or a list of strings, got {quoted(request_ids)}")


def check_data_parallel_rank(rank: int | None, num_engines: int) -> None:
    """Raises RequestError unless the rank is None or the number of an engine."""
    if rank is not None and (type(rank) is not int or not 0 <= rank < num_engines):
        raise RequestError(
            f"data_parallel_rank {quoted(rank)} is out of range [0, {num_engines}).",
            parameter="data_parallel_rank",
            value=rank,
        )


@contextmanager
def located(prompts: str, index: int, count: int, *, params: str | None = None) -> Iterator[None]:
    """Add the position to a RequestError about one of `count` requests.

    `prompts` and `params` are the caller's names of the two lists; `params` is None if all requests
    share their parameters. An error of shared parameters is raised for the first request and
    applies to all, so it gets no position.
    """
    try:
        yield
    except RequestError as error:
        is_of_prompt = isinstance(error, PromptError) or error.parameter == prompts
        is_of_all = not is_of_prompt and params is None and index == 0
        if count > 1 and not is_of_all:
            name = prompts if is_of_prompt or params is None else params
            error.args = (f"{name}[{index}]: {error}",)
        raise
