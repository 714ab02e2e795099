"""The results of requests: `RequestOutput` with its `CompletionOutput`s. Names are vLLM's.

Made by the OutputProcessor; the engine does not read them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import overload

from quire.log import get_logger

logger = get_logger(__name__)


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """1 is the most likely token of the vocabulary."""
    decoded_token: str | None = None
    """The token as text; None without a tokenizer."""


LogprobsOnePosition = dict[int, Logprob]
_NUM_BEFORE = 4
"""Tokens before one that its text may depend on."""


class FlatLogprobs(Sequence["LogprobsOnePosition | None"]):
    """The log-probabilities of some positions in flat arrays, 16 bytes for each.

    A sequence of dicts; each access makes a new dict. Enabled by `SamplingParams.flat_logprobs`: a
    million `Logprob` objects take 200 MB, and slow down every full garbage collection.
    """

    __slots__ = ("_before", "_decode", "end_indices", "logprobs", "ranks", "token_ids")

    def __init__(
        self,
        decode: Callable[[int, Sequence[int]], str] | None = None,
        before: Sequence[int] = (),
    ) -> None:
        """`decode` gives the text of a token that follows others; None: tokens have none.
        `before`: the last tokens before the first one that has log-probabilities."""
        self.end_indices = array("q")
        """The end index of each position in the arrays below."""
        self.token_ids = array("i")
        self.logprobs = array("d")
        self.ranks = array("i")
        self._decode = decode
        self._before = list(before)

    @property
    def start_indices(self) -> array[int]:
        """The start index of each position in the arrays."""
        return array("q", [0, *self.end_indices[:-1]]) if self.end_indices else array("q")

    @property
    def decoded_tokens(self) -> list[str | None]:
        """The texts of `token_ids`."""
        return [one.decoded_token for found in self for one in (found or {}).values()]

    def append_fast(
        self, token_ids: Iterable[int], logprobs: Iterable[float], ranks: Iterable[int]
    ) -> None:
        """Adds a position. With empty arguments: one without log-probabilities, which reads as
        None."""
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.end_indices.append(len(self.token_ids))

    def extend(self, others: FlatLogprobs) -> None:
        """Appends the positions of `others`."""
        offset = len(self.token_ids)
        self.token_ids += others.token_ids
        self.logprobs += others.logprobs
        self.ranks += others.ranks
        self.end_indices.extend([offset + end for end in others.end_indices])

    def copy(self) -> FlatLogprobs:
        """A copy."""
        return self[:]

    def span(self, position: int) -> slice:
        """The slice of the arrays for a position, counted from 0."""
        begin = self.end_indices[position - 1] if position else 0
        return slice(begin, self.end_indices[position])

    def __len__(self) -> int:
        return len(self.end_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition | None: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs | None:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if not -len(self) <= index < len(self):
            raise IndexError(f"position {index} of {len(self)}")
        position = index % len(self)
        span, decode = self.span(position), self._decode
        before = self._tokens_before(position) if decode else []
        entries = zip(self.token_ids[span], self.logprobs[span], self.ranks[span], strict=True)
        return {
            token_id: Logprob(logprob, rank, decode(token_id, before) if decode else None)
            for token_id, logprob, rank in entries
        } or None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _tokens_before(self, position: int) -> list[int]:
        """The last tokens before a position: the first entry of each of the positions there."""
        first = max(0, position - _NUM_BEFORE)
        spans = [self.span(place) for place in range(first, position)]
        ids = [self.token_ids[span.start] for span in spans if span.start < span.stop]
        return [*self._before, *ids][-_NUM_BEFORE:]

    def _part(self, begin: int, end: int, step: int) -> FlatLogprobs:
        if step == 1 and begin < end:
            part = FlatLogprobs(self._decode, self._tokens_before(begin))
            span = slice(self.span(begin).start, self.end_indices[end - 1])
            part.token_ids, part.logprobs = self.token_ids[span], self.logprobs[span]
            part.ranks = self.ranks[span]
            ends = self.end_indices[begin:end]
            part.end_indices = array("q", [place - span.start for place in ends])
            return part
        part = FlatLogprobs(self._decode)
        for position in range(begin, end, step):
            span = self.span(position)
            part.append_fast(self.token_ids[span], self.logprobs[span], self.ranks[span])
        return part


SampleLogprobs = list[LogprobsOnePosition] | FlatLogprobs
"""An entry for each output token: the sampled token first, then the most likely ones in order."""
PromptLogprobs = list["LogprobsOnePosition | None"] | FlatLogprobs


@dataclass(slots=True)
class RequestStateStats:
    """Times and counts of one request. `arrival_time` is wall-clock seconds since the epoch;
    the `_ts` fields are too, so that they can be compared with it."""

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from arrival to the first token."""
    is_corrupted: bool = False
    """False, as is `is_watermarked`: a request with numbers that are not finite ends with an error,
    and there are no watermarks."""
    is_watermarked: bool = False
    is_watermark_skipped: bool = False


@dataclass
class CompletionOutput:
    """One of the `n` outputs of a request. Fields and their order are vLLM's; those of features
    that do not exist here are None."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum of the sampled tokens' log-probabilities; None unless logprobs were requested."""
    logprobs: SampleLogprobs | None
    routed_experts: None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while it is running."""
    stop_reason: int | str | None = None
    """The stop string or token that ended it; None for end-of-sequence and all other ends."""
    lora_request: None = None
    sampling_mask: None = None
    spec_decode_metrics: None = None
    weight_versions: None = None

    def finished(self) -> bool:
        """Whether this output is complete."""
        return self.finish_reason is not None

    def __repr__(self) -> str:
        return _repr(self, (
            "index", "text", "token_ids", "routed_experts", "sampling_mask", "cumulative_logprob",
            "logprobs", "finish_reason", "stop_reason",
        ))  # fmt: skip


@dataclass(init=False)
class RequestOutput:
    """The outputs of one request, so far or final. Fields and their order are vLLM's, but for
    `error`; those of features that do not exist here are None."""

    request_id: str
    prompt: str | None
    """None if the prompt was given as token ids."""
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    """A dict for each prompt token: the token itself first, then the most likely ones in order;
    None for the first token, which has no context. In a stream of deltas: in the first one only."""
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int | None = None
    """Prompt tokens that came from the prefix cache."""
    num_cache_creation_tokens: None = None
    _: KW_ONLY
    prompt_token_id_logprobs: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    error: str | None = None
    """The error message, if an output's `finish_reason` is `error`."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int] | None,
        prompt_logprobs: PromptLogprobs | None,
        outputs: list[CompletionOutput],
        finished: bool,
        metrics: RequestStateStats | None = None,
        lora_request: None = None,
        encoder_prompt: None = None,
        encoder_prompt_token_ids: None = None,
        num_cached_tokens: int | None = None,
        num_cache_creation_tokens: None = None,
        *,
        prompt_token_id_logprobs: None = None,
        kv_transfer_params: None = None,
        ec_transfer_params: None = None,
        error: str | None = None,
        **later: object,
    ) -> None:
        """`later`: fields of later versions of vLLM, which a warning names and nothing reads."""
        if later:
            logger.warning("RequestOutput: ignoring extra arguments: %s", ", ".join(later))
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = outputs
        self.finished = finished
        self.metrics = metrics
        self.lora_request = lora_request
        self.encoder_prompt = encoder_prompt
        self.encoder_prompt_token_ids = encoder_prompt_token_ids
        self.num_cached_tokens = num_cached_tokens
        self.num_cache_creation_tokens = num_cache_creation_tokens
        self.prompt_token_id_logprobs = prompt_token_id_logprobs
        self.kv_transfer_params = kv_transfer_params
        self.ec_transfer_params = ec_transfer_params
        self.error = error

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Merges a later output of the same request into this one.

        `aggregate`: both are deltas and are joined; otherwise the later one replaces this one's.
        """
        self.finished |= next_output.finished
        self.metrics = next_output.metrics or self.metrics
        self.prompt_logprobs = next_output.prompt_logprobs or self.prompt_logprobs
        self.error = next_output.error or self.error
        for new in next_output.outputs:
            for position, old in enumerate(self.outputs):
                if old.index != new.index:
                    continue
                if aggregate:
                    _extend(old, new)
                else:
                    self.outputs[position] = new
                break
            else:
                self.outputs.append(new)

    def __repr__(self) -> str:
        return _repr(self, (
            "request_id", "prompt", "prompt_token_ids", "encoder_prompt",
            "encoder_prompt_token_ids", "prompt_logprobs", "prompt_token_id_logprobs", "outputs",
            "finished", "metrics", "lora_request", "num_cached_tokens",
            "num_cache_creation_tokens",
        ))  # fmt: skip


def _repr(output: object, names: tuple[str, ...]) -> str:
    """vLLM's, with the fields in its order."""
    fields = ", ".join(f"{name}={getattr(output, name)!r}" for name in names)
    return f"{type(output).__name__}({fields})"


def _extend(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids += new.token_ids  # a delta's lists are its own
    if isinstance(old.logprobs, FlatLogprobs) and isinstance(new.logprobs, FlatLogprobs):
        old.logprobs.extend(new.logprobs)
    elif isinstance(old.logprobs, list) and isinstance(new.logprobs, list):
        old.logprobs += new.logprobs
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
