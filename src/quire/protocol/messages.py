"""The messages between the engine's parts, in the order of a request's life.

    EngineCoreRequest   InputProcessor -> EngineCore -> Scheduler
    SchedulePlan        Scheduler -> Executor -> ModelRunner
    StepResult          ModelRunner -> Executor -> Scheduler
    EngineCoreOutputs   EngineCore -> OutputProcessor

msgspec structs, so that each crosses a process border unchanged (msgpack, no pickle).
They carry plain lists and numbers; nothing here computes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningTokens

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class EngineCoreRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A validated request: token ids in, everything defaulted, nothing left to resolve."""

    request_id: str
    """Internal and unique; what the user sees is the front end's business."""
    prompt_token_ids: list[int]
    num_reply_tokens: int = 0
    """The last tokens of the prompt that a reply began with: a beam's. A grammar takes them in."""
    sampling_params: SamplingParams
    """`max_tokens` is a number here and `seed` is set."""
    arrival_time: float
    """Seconds since the epoch."""
    stop_token_ids: list[int] = []
    """Ends the request when sampled: EOS ids (unless ignored) and the user's own."""
    eos_token_ids: list[int] = []
    """The subset of `stop_token_ids` whose `stop_reason` is reported as None."""
    banned_token_ids: list[int] = []
    """Forbidden until `min_tokens` are generated: what ends a request, and all EOS ids even if they
    are ignored."""
    reasoning: ReasoningTokens | None = None
    """The marks of reasoning, if a grammar or a budget depends on them."""
    cache_salt: str | None = None
    priority: int = 0
    """Lower runs earlier under the `priority` policy."""
    hands_off: bool = False
    """Another engine goes on with the prompt: it is told the name of its K/V."""
    awaited_kv: str | None = None
    """Another engine computes the prompt, and stores its K/V under this name (`kv_name` of its
    output); "" if the name is not known. None: nobody does."""


class ScheduledRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker must learn of a request it does not hold: a new or a preempted one."""

    request_id: str
    token_ids: list[int]
    """All tokens so far: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    block_ids: list[list[int]]
    """A block table for each group of layers."""
    first_entries: list[int]
    """Where each of them begins: no token from now on sees the entries before."""
    num_computed_tokens: int
    """Tokens whose K/V is in these blocks already (prefix hits)."""
    banned_token_ids: list[int] = []
    reasoning: ReasoningTokens | None = None
    """Both as in `EngineCoreRequest`."""


class SchedulePlan(msgspec.Struct, kw_only=True):
    """One step's work. `request_ids` and `num_scheduled_tokens` run in parallel.

    A plan may be made before the results of earlier ones are known, so it names no tokens but
    those of requests that it starts: the worker feeds each other one the tokens that it was
    started with, then those that the steps before have chosen.
    """

    request_ids: list[str]
    num_scheduled_tokens: list[int]
    copied_block_ids: list[list[list[int]]] = []
    """Copies that are made before anything is computed, in this order: of each the blocks that are
    copied, and those that they are copied to."""
    started: dict[str, ScheduledRequest]
    """The members of `request_ids` that the worker does not hold."""
    new_block_ids: dict[str, list[list[int]]]
    """Blocks appended to each table of requests that the worker holds already."""
    released_request_ids: list[str]
    """Finished, aborted or preempted since the last plan: forget their rows, before all else.
    An id may be unknown, where an earlier plan that named it was not computed."""
    structured_output_request_ids: list[str] = []
    """Those with a grammar whose next token the step chooses."""
    grammar_bitmask: list[bytes] = []
    """Of each of these, the tokens that its grammar allows: little-endian words of 32 bits, of
    which bit t % 32 of word t // 32 is set for token t."""
    forced_token_ids: dict[str, list[int]] = {}
    """Tokens that follow those that the worker knows of a request: its grammar allowed no others,
    so that no step has chosen them."""
    draft_token_ids: dict[str, list[int]] = {}
    """Guesses of the next tokens of requests whose next token the step chooses. They count in
    `num_scheduled_tokens`. The step chooses a token after each of them too; tokens are kept up to
    the first that differs from its guess."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """T of the step."""
        return sum(self.num_scheduled_tokens)


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position: the chosen token first, then the best ones in order."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
    """1 is the most likely token of the vocabulary."""


class PromptChunkLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of the prompt tokens that the tokens of one chunk predict."""

    first: int
    """Place of the first of them in the prompt; at least 1."""
    positions: list[TokenLogprobs]


class StepResult(msgspec.Struct, kw_only=True):
    """What a step produced, parallel to the plan's `request_ids`."""

    sampled_token_ids: list[list[int]]
    """Empty for a request whose prompt is not finished yet; else one token and one more for each
    draft token that was right, in order of position."""
    logprobs: dict[str, list[TokenLogprobs]] = {}
    """For the requests that asked, one entry per sampled token."""
    prompt_logprobs: dict[str, PromptChunkLogprobs] = {}
    """For the requests that asked, of the prompt tokens that the step's tokens predict."""
    failures: dict[str, str] = {}
    """Requests that cannot go on, and why: nothing else here is theirs."""
    unmet: list[str] = []
    """Those of them whose own fields leave nothing to choose."""


class EngineCoreOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one request gained in one step."""

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptChunkLogprobs | None = None
    """Come piece by piece before the first token; a preemption may repeat some, unchanged."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token that ended it, or `repetition_detected`; None for EOS and all other ends."""
    num_cached_tokens: int = 0
    """Prompt tokens that a prefix hit saved."""
    loaded_tokens: dict[str, int] = {}
    """Those of them whose K/V came from the KV store, by tier."""
    num_preemptions: int = 0
    scheduled_time: float | None = None
    """Seconds since the epoch when it first ran."""
    kv_name: str | None = None
    """The key of the last block of the prompt that another engine needs, in hex digits, where it is
    stored for one."""
    error: str | None = None
    """Why, when `finish_reason` is `error`."""
    is_unmet: bool = False
    """The error is one of the request's own fields: nothing failed."""


class KVStoreStats(msgspec.Struct, kw_only=True):
    """What happened in the KV store since the engine's start, and what its tiers hold."""

    sums: dict[str, dict[str, float]]
    """By name, then by tier or reason."""
    usage: dict[str, tuple[int, int]]
    """Chunks and bytes, by tier."""


class SchedulerStats(msgspec.Struct, kw_only=True):
    """A snapshot taken after a step, for the log line and the metrics."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the blocks that hold a running request's tokens, 0 to 1."""
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    """These three count since the last snapshot."""
    kv_store: KVStoreStats | None = None
    """Now and then, where there is a store."""


class EngineCoreOutputs(msgspec.Struct, kw_only=True):
    """Everything one step tells the front ends."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats | None = None
    timestamp: float = 0.0
    """Seconds since the epoch at the end of the step."""
