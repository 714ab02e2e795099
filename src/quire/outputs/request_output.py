"""The results of requests: `RequestOutput` with its `CompletionOutput`s, and `BeamSearchOutput`.
Names are vLLM's.

Created by the OutputProcessor; the engine does not read them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from quire.adapters.request import LoRARequest
from quire.log import get_logger
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics, RequestStateStats
from quire.outputs.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs

logger = get_logger(__name__)


@dataclass
class CompletionOutput:
    """One of the `n` outputs of a request. Fields and their order are vLLM's; fields of unsupported
    features are None."""

    index: int
    """Place among the `n` outputs, from 0."""
    text: str
    """Text so far, or since the previous output (`SamplingParams.output_kind`)."""
    token_ids: list[int]
    """Generated tokens of the same part."""
    cumulative_logprob: float | None
    """Sum of the sampled tokens' log-probabilities; None unless logprobs were requested."""
    logprobs: SampleLogprobs | None
    routed_experts: None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort`, `error` or `repetition`; None while the output is generated."""
    stop_reason: int | str | None = None
    """The stop string or token that ended the output; None for all other ends."""
    lora_request: LoRARequest | None = None
    sampling_mask: None = None
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None
    """Counts of draft tokens of a finished output, if `per_request_spec_decode_metrics` is set."""
    weight_versions: None = None
    _: KW_ONLY
    prediction: PredictionCounts | None = None
    """Counts of draft tokens that came from the prompt's `prediction`, of a finished output."""

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
    """The outputs of one request, partial or final. Fields and their order are vLLM's, except
    `error`; fields of unsupported features are None."""

    request_id: str
    prompt: str | None
    """None if the prompt was given as token ids."""
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    """One dict per prompt token: the token itself first, then the most likely ones in order; None
    for the first token, which has no context. In a stream of deltas, only the first output has
    them."""
    outputs: list[CompletionOutput]
    """`n` outputs; a stream of deltas has those that changed."""
    finished: bool
    """Whether every output is complete."""
    metrics: RequestStateStats | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int | None = None
    """Number of prompt tokens that came from the prefix cache."""
    num_cache_creation_tokens: None = None
    _: KW_ONLY
    prompt_token_id_logprobs: None = None
    kv_transfer_params: dict[str, Any] | None = None
    """Parameters for another engine that continues this prompt, if requested."""
    ec_transfer_params: None = None
    error: str | None = None
    """The error message if an output's `finish_reason` is `error`."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int] | None,
        prompt_logprobs: PromptLogprobs | None,
        outputs: list[CompletionOutput],
        finished: bool,
        metrics: RequestStateStats | None = None,
        lora_request: LoRARequest | None = None,
        encoder_prompt: None = None,
        encoder_prompt_token_ids: None = None,
        num_cached_tokens: int | None = None,
        num_cache_creation_tokens: None = None,
        *,
        prompt_token_id_logprobs: None = None,
        kv_transfer_params: dict[str, Any] | None = None,
        ec_transfer_params: None = None,
        error: str | None = None,
        **later: object,
    ) -> None:
        """`later`: fields of later versions of vLLM; they are ignored with a warning."""
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
        """Merge a later output of the same request into this one.

        `aggregate`: both are deltas, which are concatenated; otherwise the later output replaces
        this one.
        """
        self.finished |= next_output.finished
        self.metrics = next_output.metrics or self.metrics
        self.prompt_logprobs = next_output.prompt_logprobs or self.prompt_logprobs
        self.error = next_output.error or self.error
        self.kv_transfer_params = next_output.kv_transfer_params or self.kv_transfer_params
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


@dataclass
class BeamSearchSequence:
    """A sequence that a beam search found. Fields and their order are vLLM's."""

    orig_prompt: dict[str, Any]
    """The prompt as token ids, with its text and its salt if it has any."""
    tokens: list[int]
    """The prompt's, then the generated ones, with the end-of-sequence token."""
    logprobs: list[dict[int, Logprob]]
    """For each generated token the log-probabilities of the best tokens at its place, in order.
    It is one of them."""
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    """Sum of the generated tokens' log-probabilities."""
    text: str | None = None
    """Text of all tokens, including the prompt; None without a tokenizer."""
    finish_reason: str | None = None
    """`stop`, `length` or `abort`."""
    stop_reason: int | str | None = None
    """The end-of-sequence token or the stop string that ended the sequence."""


@dataclass
class BeamSearchOutput:
    """Results of a beam search of one prompt, the best first: at most `beam_width` sequences."""

    sequences: list[BeamSearchSequence]


def _repr(output: object, names: tuple[str, ...]) -> str:
    """vLLM's representation, with the fields in its order."""
    fields = ", ".join(f"{name}={getattr(output, name)!r}" for name in names)
    return f"{type(output).__name__}({fields})"


def _extend(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids += new.token_ids  # safe, because the lists of a delta are not shared
    if isinstance(old.logprobs, FlatLogprobs) and isinstance(new.logprobs, FlatLogprobs):
        old.logprobs.extend(new.logprobs)
    elif isinstance(old.logprobs, list) and isinstance(new.logprobs, list):
        old.logprobs += new.logprobs
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
    old.spec_decode_metrics = new.spec_decode_metrics
    old.prediction = new.prediction
