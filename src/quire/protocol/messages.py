"""The messages between the engine's parts, in the order of a request's life.

    EngineCoreRequest   InputProcessor -> EngineCore -> Scheduler
    SchedulePlan        Scheduler -> Executor -> ModelRunner
    StepResult          ModelRunner -> Executor -> Scheduler
    EngineCoreOutputs   EngineCore -> OutputProcessor

They are msgspec structs, so that they can be sent to other processes unchanged (msgpack, no
pickle), and contain only plain lists and numbers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.adapters.request import LoRARequest, PromptAdapterRequest
from quire.images.rules import Layout
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.params import SamplingParams
from quire.protocol.block_changes import BlockChanges
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows
from quire.protocol.pooling_params import PoolingParams
from quire.reasoning.marks import ReasoningTokens

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class ImageInput(msgspec.Struct, frozen=True):
    """A decoded picture, video or sound of a request, whose rows are computed before it starts. Its
    `InputRows` in the request have no data until then."""

    digest: bytes
    """Identifies its tiles and what computes them: equal digests mean equal rows."""
    layout: Layout
    pixels: bytes
    """Bytes of the tiles, one after the other: RGB, or a spectrum."""
    first_rows: int
    """The first of its entries in `EngineCoreRequest.input_rows`."""
    num_entries: int
    """Number of its entries there. They follow each other, and have its rows in order."""
    num_tile_rows: int = 0
    """Rows of all tiles, if there is an `order`."""
    order: bytes = b""
    """Which of the rows of all tiles the picture has, int32; empty: all in order."""


class EngineCoreRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A validated request: token ids, and parameters with all defaults filled in."""

    request_id: str
    """Internal unique id; the front end maps it to the id that the user sees."""
    prompt_token_ids: list[int]
    predicted_token_ids: list[int] = []
    """The text that the client expects as the reply. It only makes the reply faster."""
    num_reply_tokens: int = 0
    """Number of tokens at the end of the prompt that belong to the reply (in beam search). A
    grammar must accept them first."""
    sampling_params: SamplingParams
    """`max_tokens` is a number here and `seed` is set. Neutral ones if the request pools."""
    pooling_params: PoolingParams | None = None
    """None: the request generates. Otherwise it ends with its first result."""
    arrival_time: float
    """Seconds since the epoch."""
    stop_token_ids: list[int] = []
    """Token ids that end the request when sampled: EOS ids (unless ignored) and the user's."""
    eos_token_ids: list[int] = []
    """The subset of `stop_token_ids` whose `stop_reason` is reported as None."""
    banned_token_ids: list[int] = []
    """Token ids that are forbidden until `min_tokens` are generated: `stop_token_ids`, and all EOS
    ids even if they are ignored."""
    reasoning: ReasoningTokens | None = None
    """Tokens that mark reasoning, if a grammar or a budget depends on them."""
    scope: CacheScope = EVERYONE
    """The requests with which it shares what is cached."""
    priority: int = 0
    """Lower runs earlier under the `priority` policy."""
    data_parallel_rank: int | None = None
    """The engine that computes it, where there are several; None: the front end chooses one."""
    block_keys: list[bytes] = []
    """Keys of the prompt's full blocks, where the choice of an engine needs them; not sent on."""
    hands_off: bool = False
    """Whether another engine continues after the prompt; it gets `kv_name` of the output."""
    awaited_kv: str | None = None
    """Name under which another engine, which computes the prompt, stores its K/V (`kv_name` of its
    output); "" if the name is unknown. None: no other engine computes the prompt."""
    lora: LoRARequest | None = None
    """The adapter that the caller names."""
    prompt_adapter: PromptAdapterRequest | None = None
    """The prompt adapter that the caller names. The prompt then begins with placeholders for its
    virtual tokens, and `input_rows` with the rows, whose digest is set when it is in memory."""
    adapter: str = ""
    """Digest of the version of the adapter with which the request begins; set when it is in
    memory. "": no adapter."""
    input_rows: list[InputRows] = []
    """Rows that take the place of the embeddings of prompt tokens, in order of position."""
    images: list[ImageInput] = []
    """Pictures that are to be encoded before the request starts."""


class ScheduledRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a new or preempted request that the worker does not hold."""

    request_id: str
    token_ids: list[int]
    """All tokens so far: the prompt, then tokens that were generated before a preemption."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    pooling_params: PoolingParams | None = None
    """Both as in `EngineCoreRequest`."""
    block_ids: list[list[int]]
    """A block table for each layer group."""
    first_entries: list[int]
    """First entry of each table; no later token attends to the entries before it."""
    num_computed_tokens: int
    """Number of tokens whose K/V is already in these blocks (prefix hits)."""
    banned_token_ids: list[int] = []
    reasoning: ReasoningTokens | None = None
    """`banned_token_ids` and `reasoning` are as in `EngineCoreRequest`."""
    adapter: str = ""
    input_rows: list[InputRows] = []
    """Both as in `EngineCoreRequest`."""


class SchedulePlan(msgspec.Struct, kw_only=True):
    """One step's work. `request_ids` and `num_scheduled_tokens` are parallel.

    A plan may be made before the results of earlier plans are known, so it contains token ids only
    of requests that it starts. For other requests, the worker uses the tokens that they were
    started with, then the tokens that earlier steps sampled.
    """

    request_ids: list[str]
    num_scheduled_tokens: list[int]
    copied_block_ids: list[list[list[int]]] = []
    """Copies that are made before anything is computed, in this order: of each the blocks that are
    copied, and those that they are copied to."""
    started: dict[str, ScheduledRequest]
    """Requests of `request_ids` that the worker does not hold yet."""
    new_block_ids: dict[str, list[list[int]]]
    """Blocks appended to each table of requests that the worker already holds."""
    released_request_ids: list[str]
    """Requests that were finished, aborted or preempted since the last plan. The worker releases
    their rows first. An id may be unknown if an earlier plan with it was not computed."""
    structured_output_request_ids: list[str] = []
    """Requests with a grammar whose next token the step samples."""
    grammar_bitmask: list[bytes] = []
    """For each of these, the tokens that its grammar allows, as little-endian 32-bit words: bit
    t % 32 of word t // 32 is set if token t is allowed. A request with draft tokens has one more
    mask after each of them."""
    draft_token_ids: dict[str, list[int]] = {}
    """Draft tokens of requests whose next token the step samples. They are included in
    `num_scheduled_tokens`. The step also samples a token after each of them, and keeps sampled
    tokens up to the first that differs from its draft token."""
    num_next_drafts: dict[str, int] = {}
    """Number of tokens that the draft model proposes after the step, for requests whose next token
    the step samples. Their block tables have room for them."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """T, the number of tokens of the step."""
        return sum(self.num_scheduled_tokens)


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position: the chosen token first, then the best ones in order."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
    """Rank in the vocabulary; 1 is the most likely token."""


class PromptChunkLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of prompt tokens that one chunk predicts."""

    first: int
    """Position of the first of them in the prompt; at least 1."""
    positions: list[TokenLogprobs]


class PooledRows(msgspec.Struct, array_like=True):
    """The result of a pooling request: a row, or a row for each of its tokens."""

    data: bytes
    """float32, little-endian, row after row."""
    width: int
    by_token: bool = False


class StepResult(msgspec.Struct, kw_only=True):
    """Result of a step, parallel to the plan's `request_ids`."""

    sampled_token_ids: list[list[int]]
    """Empty for a request whose prompt is not finished yet; otherwise one token, and one more for
    each accepted draft token, in order of position."""
    logprobs: dict[str, list[TokenLogprobs]] = {}
    """One entry per sampled token, for requests that asked for them."""
    prompt_logprobs: dict[str, PromptChunkLogprobs] = {}
    """The prompt tokens that the step predicts, for requests that asked for them."""
    next_drafts: dict[str, list[int]] = {}
    """Tokens that the draft model proposes as the ones after the sampled tokens."""
    pooled: dict[str, PooledRows] = {}
    """Results of pooling requests whose last token the step computed."""
    failures: dict[str, str] = {}
    """Error messages of requests that failed; the other fields contain nothing of them."""
    unmet: list[str] = []
    """Failed requests whose own parameters allow no token."""


class EngineCoreOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Output of one request in one step."""

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptChunkLogprobs | None = None
    """Sent in pieces before the first token; after a preemption some are repeated, unchanged."""
    pooled: PooledRows | None = None
    """The result of a pooling request."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token that ended it, or `repetition_detected`; None for EOS and other reasons."""
    num_cached_tokens: int = 0
    """Number of prompt tokens that were not computed because of a prefix hit."""
    loaded_tokens: dict[str, int] = {}
    """Number of these whose K/V came from the KV store, by tier."""
    num_preemptions: int = 0
    scheduled_time: float | None = None
    """Time when it first ran, in seconds since the epoch."""
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None
    prediction: PredictionCounts | None = None
    """Counts of draft tokens, with the last output: those of the request if they were asked for,
    and those from its prediction if it has one."""
    kv_name: str | None = None
    """Key of the last block of the prompt, in hex digits, if it was stored for another engine."""
    error: str | None = None
    """Error message if `finish_reason` is `error`."""
    is_unmet: bool = False
    """Whether the request's own parameters caused the error, not a failure."""
    parameter: str | None = None
    """The field that caused it, if its constraints did not."""


class KVStoreStats(msgspec.Struct, kw_only=True):
    """Counts of the KV store since the engine's start, and the contents of its tiers."""

    sums: dict[str, dict[str, float]]
    """Totals by name, then by tier or reason."""
    usage: dict[str, tuple[int, int]]
    """Number of chunks and bytes, by tier."""


class SpeculationStats(msgspec.Struct, kw_only=True):
    """Draft tokens since the last snapshot."""

    num_drafts: int = 0
    """Drafts of one request that a step has checked."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_position: list[int] = []
    """Right guesses by their place in the draft."""


class SchedulerStats(msgspec.Struct, kw_only=True):
    """A snapshot taken after a step, for the log line and the metrics."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the blocks that requests hold, 0 to 1."""
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    """The last three fields count since the previous snapshot."""
    speculation: SpeculationStats | None = None
    """None if no draft tokens were checked."""
    kv_store: KVStoreStats | None = None
    """Set from time to time, if there is a KV store."""
    mm_cache: tuple[int, int] | None = None
    """Queries of the cache of encoded images since the engine's start, and how many were hits.
    None: the engine takes no images."""


class EngineCoreOutputs(msgspec.Struct, kw_only=True):
    """Everything that one step sends to the front ends."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats | None = None
    timestamp: float = 0.0
    """Seconds since the epoch at the end of the step."""
    blocks: BlockChanges | None = None
    """Changes of the prefix cache, for front ends that follow it."""
