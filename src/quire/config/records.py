"""The engine's configuration: frozen records, one per concern, with all defaults resolved.

Made once by `planning`, with the functions of `resolve.py`, from the user's arguments, the
checkpoint and the machine. All other packages only read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quire.adapters.config import LoRAConfig, PromptAdapterConfig
from quire.config.checkpoint.hf_overrides import HFValues
from quire.config.kv_cache import KVCacheDtype, KVEventsConfig, KVMemoryChoice, KVStoreConfig
from quire.config.kv_layout import KVLayout
from quire.config.pooling import PoolingConfig
from quire.config.quantization import Quantization
from quire.config.ranks import Rank
from quire.config.speculation import SpeculationConfig
from quire.config.stored_numbers import StoredNumbers
from quire.forbidden_tokens import ForbiddenTokens
from quire.images.config import ImagesConfig
from quire.reasoning.marks import ReasoningMarks
from quire.redacted_settings import shown
from quire.structured.params import StructuredOutputsConfig

SchedulingPolicy = Literal["fcfs", "priority"]
BackendName = str
"""`cpu`, `cuda`, `reference`, `transformers`, or a backend that a package brings."""
ExecutorBackend = Literal["uni", "mp", "ray"]
"""Who starts the ranks: the engine itself has the only one, or each rank is a process."""
Dtype = Literal["float32", "bfloat16"]
"""The dtype of activations, and of weights that are not quantised."""
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
"""Numbers that are reported as log-probabilities: of the model's own logits, or of the logits from
which a token is chosen."""
WeightSource = Literal["checkpoint", "packed", "dummy"]
"""Source of the weights: the checkpoint, a packed file next to config.json, or random numbers."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Number formats in which a model's weights are held and multiplied."""

    dtype: Dtype
    quantization: Quantization | None
    stored_numbers: StoredNumbers | None = None
    """Types of the numbers in a float32 model's checkpoint; None: all as `dtype`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model, and the values from its checkpoint."""

    model: str
    """The model's name as the user wrote it: a directory, a hub id, or the bundled model's name."""
    path: Path
    """The local directory that holds the checkpoint."""
    tokenizer_path: Path | None
    """None: no tokenizer (`skip_tokenizer_init`)."""
    hf_config: Mapping[str, Any]
    """config.json as read (with `hf_overrides` applied); its keys are attributes too."""
    architecture: str
    dtype: Dtype
    max_model_len: int
    """Most tokens of a request, prompt and output together."""
    vocab_size: int
    """Width of the logits; every token id is below it."""
    served_model_name: tuple[str, ...]
    seed: int = 0
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    quantization: Quantization | None = None
    """Format of the matrices; None: `dtype`."""
    stored_numbers: StoredNumbers | None = None
    """Types in the checkpoint's files, if `dtype` is float32. None: all as `dtype`."""
    weights: WeightSource = "checkpoint"
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    """From generation_config.json, for parameters that a request does not set."""
    never_generated: ForbiddenTokens | None = None
    """Tokens that generation_config.json forbids in every reply."""
    max_output_tokens: int | None = None
    """Most tokens of any reply of a server; None: what the context has room for."""
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    pooling: PoolingConfig | None = None
    """Pooling of the model; None: it generates."""
    prompt_embeds_width: int | None = None
    """Numbers of a row of `prompt_embeds`; None: prompts of embeddings are refused."""
    images: ImagesConfig | None = None
    """Limits and forms of images or audio; None: the model takes neither."""
    no_images: str = ""
    """Why it takes neither; "": it does."""
    num_sources: int = 0
    """Positions of each request before its tokens: the rows of an encoder (Whisper)."""
    logits_processors: tuple[Any, ...] = ()
    """Classes that change logits, as `module:Class`; or the class itself, where the name does not
    lead to it in another process."""

    @property
    def max_positions(self) -> int:
        """Most positions of a request in the engine."""
        return self.num_sources + self.max_model_len

    def takes(self, kind: str) -> bool:
        """Whether requests may have an `image`, `video` or `audio`: a name of `MODALITIES`."""
        return self.images is not None and self.images.limits.get(kind, 0) > 0

    @property
    def tokenizer(self) -> str | None:
        """Path from which the tokenizer was read."""
        return None if self.tokenizer_path is None else str(self.tokenizer_path)

    @property
    def hf_text_config(self) -> Mapping[str, Any]:
        """The part of `hf_config` about the text model, or all of it."""
        text: Mapping[str, Any] = HFValues(self.hf_config).get_text_config()
        return text

    @property
    def runner_type(self) -> str:
        """vLLM's name of what runs the model."""
        return "generate" if self.pooling is None else "pooling"

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """vLLM's names of what the model can do."""
        if self.pooling is not None:
            return self.pooling.supported_tasks
        return ("transcription",) if self.num_sources else ("generate",)

    def get_vocab_size(self) -> int:
        """`vocab_size`."""
        return self.vocab_size

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """`default_sampling_params`."""
        return dict(self.default_sampling_params)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache. `num_blocks` is final: it fits in the memory."""

    block_size: int
    num_blocks: int
    kv_cache_dtype: KVCacheDtype
    enable_prefix_caching: bool
    block_bytes: int
    """Bytes of one block: `block_size` tokens of the layers of one group."""
    layout: KVLayout
    """The groups."""
    asked: KVMemoryChoice = field(default_factory=KVMemoryChoice)
    """The user's choices about the size, which the server reports."""
    fingerprint: str = ""
    """Differs between models whose K/V may differ (`planning.kv.identity`); part of the root of
    every block's key."""

    most_cached_blocks: int | None = None
    """Cached blocks beyond so many are reused before the pool takes more memory; None: any number
    is kept while there is memory for it."""

    @property
    def num_gpu_blocks(self) -> int:
        """`num_blocks`, under vLLM's name."""
        return self.num_blocks

    @property
    def cache_dtype(self) -> str:
        """`kv_cache_dtype`, under vLLM's name."""
        return self.kv_cache_dtype


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the waiting queue."""

    max_num_batched_tokens: int
    max_num_seqs: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Longest chunk of one prompt while others run; 0: no limit but the token budget."""
    max_decode_slowdown: float | None = None
    """Most times longer that prompts may make a step in which others decode; None: no limit."""
    policy: SchedulingPolicy = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    queue_may_stand: bool = True
    """Whether the queue may stay at its limit, or only in a burst."""
    stream_interval: int = 1
    """Tokens between two streamed outputs, unless a request asks for more."""
    speculation: SpeculationConfig | None = None
    """Proposal of draft tokens; None: there are none."""
    num_stages: int = 1
    """Plans that are computed at once, by stages of layers: a request whose next token is being
    computed waits for it, and each plan has a part of the others."""
    max_loras: int | None = None
    """Most LoRA adapters in a step; None: no limit."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The backend and its threads."""

    backend: BackendName
    isa: str | None
    """Forced instruction-set tier, or None for the best."""
    num_threads: int
    cores: tuple[int, ...] | None = None
    """Cores that the compute threads are bound to; None: all that the process may use."""
    turns: str | None = None
    """Directory of the locks (`executor.turns`) of engines that compute by turns; None: the engine
    has the cores for itself."""
    gpu_index: int = 0
    """Number of the GPU, for backends that compute on one."""
    enforce_eager: bool = False
    """On a GPU, launch each kernel of each step, and record none."""
    description: str = field(default="", compare=False)
    """The device in words, such as the name of the GPU."""


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """Recording of the engine's steps. The names are those of vLLM's record."""

    torch_profiler_dir: str
    """Absolute path of the directory that traces are written to."""
    torch_profiler_with_stack: bool = True
    """Whether the calls of Python functions are in a trace, besides the steps."""
    torch_profiler_use_gzip: bool = True
    delay_iterations: int = 0
    """Steps that are let pass before the first that is recorded."""
    max_iterations: int = 0
    """Most steps that are recorded; 0: all."""


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """Which statistics and traces are reported, and how often."""

    log_stats: bool
    stats_interval_s: float
    otlp_traces_endpoint: str | None = None
    log_level: str | None = None
    """None: as the environment says."""
    log_config_file: str | None = None
    """JSON for `logging.config.dictConfig`; None: Quire's own log."""
    profiler: ProfilerConfig | None = None
    """None: steps are not recorded."""

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The ranks that compute the model together, and who starts them."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    distributed_executor_backend: ExecutorBackend = "uni"
    data_parallel_rank: int = 0
    """Which of the engines this one is."""
    nnodes: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    worker_class: str = ""
    """A subclass of `Worker`, by import path; empty: `Worker` itself."""
    ranks_by_node: tuple[int, ...] = ()
    """Number of ranks of each machine; empty: all machines have the same number."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def world_size_across_dp(self) -> int:
        """vLLM's name of the ranks of all engines."""
        return self.world_size * self.data_parallel_size

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks, in their order."""
        return tuple(Rank(0, 0, self.pipeline_parallel_size, self.tensor_parallel_size).all())

    def ranks_of_node(self, node: int) -> tuple[Rank, ...]:
        """The ranks of a machine: its part of all ranks, in their order."""
        counts = self.ranks_by_node or (self.world_size // self.nnodes,) * self.nnodes
        first = sum(counts[:node])
        return self.ranks[first : first + counts[node]]

    def node_of(self, rank: Rank) -> int:
        """The machine of a rank."""
        return next(node for node in range(self.nnodes) if rank in self.ranks_of_node(node))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The whole configuration of an engine. Also has vLLM's names of its parts."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    observability: ObservabilityConfig
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    kv_store: KVStoreConfig | None = None
    """None: K/V is kept only in the block pool."""
    kv_events: KVEventsConfig | None = None
    """None: KV events are off."""
    reasoning: ReasoningMarks | None = None
    """Marks from the options; None: not given."""
    lora: LoRAConfig | None = None
    prompt_adapters: PromptAdapterConfig | None = None
    """Both: limits of adapters; None: requests have none."""
    draft: ModelConfig | None = None
    """The model that drafts tokens; None: no model does."""
    worker_extension: str = ""
    """A class whose methods workers have too, by import path; "": none."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    model_config = property(lambda self: self.model)
    cache_config = property(lambda self: self.cache)
    scheduler_config = property(lambda self: self.scheduler)
    device_config = property(lambda self: self.device)
    observability_config = property(lambda self: self.observability)
    structured_outputs_config = property(lambda self: self.structured_outputs)
    kv_events_config = property(lambda self: self.kv_events)
    reasoning_config = property(lambda self: self.reasoning)
    lora_config = property(lambda self: self.lora)
    prompt_adapter_config = property(lambda self: self.prompt_adapters)
    parallel_config = property(lambda self: self.parallel)
