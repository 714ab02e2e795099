"""`EngineArgs`: what a user may choose about an engine, under vLLM's names.

Made by users, `LLM` and the command line. A field is the only declaration of an argument
(`declaration.py`): the option and its help are generated from it. `planning.plan` turns the
arguments into an `EngineConfig`. Nothing is resolved here; None means that the machine or the
checkpoint decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from quire.config.declaration import argument, at_least_one
from quire.config.names import checked_arguments, default_of
from quire.config.pooling import PoolerConfig
from quire.config.records import LogprobsMode, SchedulingPolicy
from quire.config.speculation import SpeculationConfig, speculation_config
from quire.redacted_settings import shown

DtypeChoice = Literal["auto", "bfloat16", "float32", "float", "half", "float16"]
LoadFormat = Literal["auto", "hf", "safetensors", "pt", "gguf", "dummy"]
ModelImpl = Literal["auto", "vllm", "transformers"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
LogLevel = Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"]


def _no_limit_at_zero(value: int, default: int) -> str | None:
    del default
    return None if value >= 0 else f"must be at least 0, got {value}; 0 means no limit"


@checked_arguments
@dataclass(kw_only=False)
class EngineArgs:
    """The arguments of one engine. An unknown name is an error that suggests the nearest one.

    vLLM's arguments that do nothing here are accepted at values without effect, and can be read.
    """

    model: str | None = argument(None, "ModelConfig")
    """A directory in Hugging Face's layout, a GGUF file, a hub id, or a hub id with the name of a
    GGUF file there (`org/name:file.gguf`, `org/name:Q4_K_M`); none: the bundled demo model."""
    served_model_name: str | list[str] | None = argument(None, "ModelConfig")
    """Name or names under which the server offers the model; `model` by default."""
    tokenizer: str | None = argument(None, "ModelConfig")
    """Directory or hub id of the tokenizer; the model's own by default."""
    skip_tokenizer_init: bool = argument(False, "ModelConfig")
    """Load no tokenizer: prompts must be token ids, outputs have no text."""
    trust_remote_code: bool = argument(False, "ModelConfig")
    """Accepted for compatibility; code from a checkpoint is never run, with or without it."""
    revision: str | None = argument(None, "ModelConfig")
    """Branch, tag or commit of the model on the hub."""
    tokenizer_revision: str | None = argument(None, "ModelConfig")
    """Branch, tag or commit of the tokenizer on the hub."""
    hf_token: str | bool | None = argument(None, "ModelConfig")
    """Token for private models on the hub; True: the one stored on this machine."""
    hf_overrides: dict[str, Any] | Callable[[Any], Any] | None = argument(
        group="ModelConfig", factory=dict
    )
    """Values that replace those of the checkpoint's config.json; or a function that is given it,
    its keys as attributes, and returns it changed."""
    download_dir: str | None = argument(None, "LoadConfig")
    """Directory for downloads; the hub's own cache by default."""
    load_format: LoadFormat = argument("auto", "LoadConfig")
    """Source of the weights: `auto` takes packed weights, safetensors or PyTorch files, as it finds
    them; `hf`, `safetensors` and `pt` leave packed ones out; `gguf` prefers a GGUF file to all
    others; `dummy` takes random numbers, to measure speed without a checkpoint."""
    model_impl: ModelImpl = "auto"
    """Who computes the model: `vllm` the families here, `transformers` the modules of transformers,
    slowly (needs `quire-engine[transformers]`); `auto` these where no family has the
    architecture."""
    runner: Runner = "auto"
    """Results of the model: `generate` for text, or `pooling` for vectors and classes of texts;
    `auto`: decided by its class and its files."""
    convert: Convert = "auto"
    """Conversion of a language model to a pooling model: `embed` or `classify`; `none` and `auto`:
    there is none."""
    task: str | None = None
    """An older name of runner and convert: `generate`, `embed`, `classify`, `score`, `reward`."""
    pooler_config: dict[str, Any] | PoolerConfig | None = None
    """Settings of pooling that replace those of the checkpoint: {"pooling_type": "MEAN"}, also
    task, use_activation, dimensions, logit_mean, logit_sigma, enable_chunked_processing,
    max_embed_len, step_tag_id and returned_token_ids, as vLLM has them."""
    dtype: DtypeChoice = argument("auto", "ModelConfig", is_common=True)
    """Number format of weights and activations; `auto` is bfloat16, as vLLM chooses, and float32
    for a pooling model whose checkpoint is float32. `float16` and
    `half` are computed in bfloat16, which has the same size and a wider range, but 8 bits of
    precision instead of 11; float32 keeps them all."""
    quantization: str | None = argument(None, "ModelConfig", "-q", is_common=True)
    """Round the weights while loading: `int8` and `int4` to so many bits with activations of 16,
    `int8_w8a8` and `int4_w4a8` with activations of 8; none by default. With 4 bits the head has 8,
    and with `_head4` at the end of the name 4."""
    max_model_len: int | None = argument(None, "ModelConfig", is_common=True, form="length")
    """Most tokens of a request, prompt and output together; by default the checkpoint's limit, or
    the original length of a model with longrope. -1 (`auto` on the command line): as many of them
    as the memory has room for."""
    seed: int = argument(0, "ModelConfig")
    """Source of the seeds of requests without one."""
    max_logprobs: int = argument(20, "ModelConfig")
    """Most log-probabilities per token that a request may ask for; -1: the whole vocabulary."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Numbers that requests get as log-probabilities: `raw_logprobs` or `raw_logits` of the model's
    own logits, `processed_logprobs` or `processed_logits` of the logits from which a token is
    chosen, after bias, penalties, temperature and filters."""
    logits_processors: list[str | type] | None = argument(None, "ModelConfig")
    """Classes that change logits before a token is chosen, as `package.module:Class`; their code
    runs in the engine. Those that installed packages offer as entry points are always loaded."""
    worker_extension_cls: str = argument("", "ModelConfig")
    """Class whose methods the worker has too, as `package.module.Class`, for `collective_rpc`;
    their code runs in the engine."""
    generation_config: str = argument("auto", "ModelConfig")
    """Source of sampling defaults: `auto` for the model's generation_config.json, `vllm` for
    neutral ones, or a directory."""
    override_generation_config: dict[str, Any] | None = argument(group="ModelConfig", factory=dict)
    """Sampling defaults that replace those of generation_config.json; also `seed`, `stop`
    and `repeat_last_n`."""
    chat_template: str | None = argument(None, "Frontend", is_common=True)
    """Chat template, as a file or as text; the tokenizer's own by default."""
    structured_outputs_config: dict[str, Any] | None = argument(
        group="StructuredOutputsConfig", factory=dict
    )
    """Settings for the structured output of all requests, `{"disable_any_whitespace": true}`: JSON
    without optional white space; `disable_additional_properties`, by default true: JSON objects
    have no properties but those that the schema names; `enable_in_reasoning`: grammars hold for the
    reasoning too. The `backend` is one of vLLM's names, without effect: there is one."""
    reasoning_parser: str = argument("", "StructuredOutputsConfig")
    """Format of the model's reasoning: a name of vLLM's, such as `qwen3`; `hf`: the format of the
    checkpoint's response_template; `none`: replies are not split. By default it is found from the
    checkpoint (quire explain MODEL prints it)."""
    reasoning_config: dict[str, Any] | None = argument(None, "VllmConfig")
    """Marks of reasoning for `thinking_token_budget`, instead of those of `reasoning_parser`:
    `{"reasoning_start_str": "<think>", "reasoning_end_str": "Enough. </think>"}`. The end is put
    where the budget is used up; it ends with the format's own end."""
    block_size: int | None = argument(None, "CacheConfig")
    """Tokens in a KV cache block, a multiple of 16; 16 by default."""
    enable_prefix_caching: bool | None = argument(None, "CacheConfig")
    """Keep the KV cache of finished prompts for later ones that begin alike; on by default."""
    kv_cache_dtype: str = argument("auto", "CacheConfig")
    """Number format of the KV cache: `auto` is the model's dtype, `int8` takes half of bfloat16's
    memory and of the time to read it, `int4` nearly half of `int8`'s and costs some quality; `fp8`
    is as large as `int8` and for GPUs alone."""
    gpu_memory_utilization: float = argument(0.92, "CacheConfig", "--device-memory-utilization")
    """Share of the memory that is available at start which weights and KV cache may use."""
    kv_cache_memory_bytes: int | None = argument(
        None, "CacheConfig", is_common=True, check=at_least_one(1 << 30)
    )
    """Size of the KV cache in bytes; from the available memory by default."""
    num_gpu_blocks_override: int | None = argument(None, "CacheConfig", check=at_least_one(1024))
    """Size of the KV cache in blocks; for tests of preemption."""
    kv_store: bool | None = None
    """Keep K/V beyond the KV cache and the process, in files, so that prompts that begin like
    earlier ones start at once; on by default, unless QUIRE_KV_STORE=off. The files contain
    prompts in another form; see docs/kv_store.md."""
    kv_store_path: str | None = None
    """Directory of these files; `quire/kv` in XDG_CACHE_HOME, or in ~/.cache, by default."""
    kv_store_size: int | None = argument(None, form="size")
    """Most bytes of the files, of all models together, as `20GiB`; by default 20 GiB, or a tenth of
    the free disk where that is less. 0: no files."""
    kv_store_memory: int = argument(0, form="size")
    """Most bytes of K/V to keep in memory, besides the KV cache, in front of the files."""
    kv_store_url: list[str] | None = argument(None, is_repeatable=True)
    """Places of K/V that several machines share, as `redis://HOST:6379/0` or `s3://BUCKET/FOLDER`;
    may be given several times."""
    kv_store_tenant_size: int | None = argument(None, form="size")
    """Most bytes that one tenant may have of one model, in memory and in files each; a tenant is
    the holder of an API key where a server has several, else the part of the cache salt before
    its first `/`. By default a tenant may have all."""
    kv_store_ttl: float | None = None
    """Drop K/V that was not used for this many seconds, also as `7d`; by default only for room."""
    kv_offloading_size: float | None = argument(None, "CacheConfig")
    """GiB of K/V to keep in memory: vLLM's name of kv_store_memory."""
    kv_offloading_backend: str = argument("native", "CacheConfig")
    """Place of that K/V: only `native`, which is Quire itself, is supported."""
    swap_space: float | None = None
    """GiB of K/V to keep in memory: an older name of kv_offloading_size."""
    kv_transfer_config: dict[str, Any] | None = argument(None, "VllmConfig")
    """vLLM's way to name the tiers of the KV store: OffloadingConnector, LMCacheConnectorV1 and
    SharedStorageConnector mean memory, files and URLs here; others are refused."""
    kv_events_config: dict[str, Any] | None = argument(None, "VllmConfig")
    """Tell others which blocks of K/V are kept and dropped, routers for example:
    {"enable_kv_cache_events": true}, also publisher, endpoint, replay_endpoint, topic,
    buffer_steps, hwm and max_queue_size, as vLLM has them. Events hold the tokens of prompts."""
    max_num_batched_tokens: int | None = argument(None, "SchedulerConfig")
    """Most tokens in one step; 4096 for `LLM`, 2048 for a server."""
    max_num_seqs: int | None = argument(None, "SchedulerConfig", is_common=True)
    """Most requests in one step; 256 for `LLM`, 128 for a server."""
    enable_chunked_prefill: bool | None = argument(None, "SchedulerConfig")
    """Let a long prompt be computed over several steps; on by default."""
    long_prefill_token_threshold: int = argument(0, "SchedulerConfig", check=_no_limit_at_zero)
    """Longest piece of one prompt in a step while other requests wait or run; 0: no limit."""
    max_decode_slowdown: float | None = None
    """Limit on a step's duration, as a multiple of one without prompts: prompts of newcomers are
    cut into smaller pieces while others generate; 1.75 for a server, 0 (no limit) for `LLM`."""
    scheduling_policy: SchedulingPolicy = argument("fcfs", "SchedulerConfig")
    """Who runs first: in order of arrival, or by the requests' priority (lower first). With the
    latter, a request preempts running ones of a higher number if it has no room otherwise."""
    max_num_queued_reqs: int | None = argument(None, "SchedulerConfig", check=at_least_one(1024))
    """Most requests that may wait in a server before further ones are turned away; by default
    1024 in a burst, and in a lasting overload as many as keep the wait short."""
    max_num_queued_tokens: int | None = argument(None, "SchedulerConfig", check=at_least_one(1024))
    """Most prompt tokens that may wait in a server before further requests are turned away."""
    speculation: bool = True
    """Guess the next tokens where a text repeats itself, and check the guesses in one step. The
    tokens are the same bit for bit; guesses are used only where they save time."""
    speculative_config: dict[str, Any] | None = argument(None, None, "-sc")
    """Method of guessing tokens, in vLLM's form: {"method": "ngram", "num_speculative_tokens": 8,
    "prompt_lookup_min": 3}. By default `ngram` with up to 32 tokens; `suffix` also searches earlier
    replies of the same tenant; {"model": DIR} lets a smaller model with the same tokens guess, and
    {"method": "mtp"} or {"method": "eagle3", "model": DIR} a head."""
    spec_method: str | None = argument(None, None, "--spec-type")
    """The same as `method` in `speculative_config`."""
    spec_model: str | None = argument(None, None, "-md", "--model-draft")
    """The same as `model` in `speculative_config`."""
    spec_tokens: int | None = argument(None, None, "--draft-max", "--spec-draft-n-max")
    """The same as `num_speculative_tokens` in `speculative_config`."""
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "none"
    """Facts about guesses in the `metrics` of each reply; `detailed`: also for each step."""
    enable_prompt_embeds: bool = False
    """Accept prompts of embeddings (`prompt_embeds`), which take the place of token ids."""
    mmproj: str | None = None
    """The GGUF file with the image encoder of a GGUF model. By default, a file next to the model
    whose name begins with mmproj."""
    limit_mm_per_prompt: dict[str, Any] = argument(factory=dict)
    """Most images, videos and sounds of a prompt, such as {"image": 4, "video": 0} or {"audio": 1};
    without any, the encoder is not loaded."""
    enable_mm_embeds: bool = False
    """Accept images that the caller has encoded (`image_embeds`)."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Settings of the image processor, in place of those in preprocessor_config.json."""
    allowed_local_media_path: str = ""
    """The folder below which `file://` URLs may point; empty: none may."""
    allowed_media_domains: list[str] | None = None
    """Domains from which files may be fetched. By default, nothing is fetched."""
    enable_prompt_adapter: bool = False
    """Let requests name prompt adapters of PEFT: prompt tuning, p-tuning and prefix tuning."""
    max_prompt_adapters: int = 1
    """Number of prompt adapters of the largest size for which memory is kept."""
    max_prompt_adapter_token: int = 0
    """Most virtual tokens of a prompt adapter; must be set with enable_prompt_adapter."""
    enable_lora: bool = False
    """Let requests name LoRA adapters, in the format of PEFT."""
    max_lora_rank: int = 16
    """Largest rank of an adapter, from 1 to 512."""
    max_loras: int | None = None
    """Most adapters that requests use at the same time, while the requests of others wait; by
    default as many as there is memory for."""
    max_cpu_loras: int | None = None
    """Number of adapters of the largest size for which memory is kept; max_loras by default, and
    at least 8 (1 for a mixture of experts). The adapter that was not used for the longest time
    makes room for a new one."""
    lora_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of adapters: `auto` is the model's dtype, `float16` is kept as bfloat16."""
    stream_interval: int = argument(1, "SchedulerConfig", check=at_least_one(1))
    """Tokens between two streamed outputs of a request; the first and the last come at once."""
    backend: str = "auto"
    """Backend that computes: `cpu` (the native library), `cuda` (a GPU), `reference` (NumPy), or
    one that a package brings; `auto` takes the native library if it loads."""
    device: str | None = "auto"
    """`cpu`, `cuda`, or `cuda:1` for the second GPU; `auto` takes a GPU that passes a check, and
    otherwise the CPU, and says which."""
    num_threads: int | None = None
    """Compute threads of each rank; by default the machine's cores, within this process's limits,
    divided among the ranks."""
    tensor_parallel_size: int = argument(1, "ParallelConfig", "-tp", check=at_least_one(2))
    """Processes that share the columns and heads of every layer, each with its own compute threads;
    the tokens are the same bit for bit."""
    pipeline_parallel_size: int = argument(1, "ParallelConfig", "-pp", check=at_least_one(2))
    """Stages of layers, one after the other, each with `tensor_parallel_size` processes; worth it
    for models that are larger than one machine, and for many requests at once."""
    data_parallel_size: int = argument(1, "ParallelConfig", "-dp", check=at_least_one(2))
    """Engines of a server, each with the whole model, its own KV cache and its share of the threads
    and of the memory; a request goes to the one where its first token is expected first."""
    distributed_executor_backend: str | None = argument(None, "ParallelConfig")
    """Who starts the processes: `uni` computes in the engine itself, `mp` in a process for each
    rank, `ray` in such processes on machines of a Ray cluster (needs `quire-engine[ray]`); `uni` by
    default, and `mp` where there are several ranks."""
    nnodes: int = argument(1, "ParallelConfig", "-n", check=at_least_one(2))
    """Machines that compute together; their ranks are divided among them in order. The others run
    `quire serve MODEL --headless` with the same address and QUIRE_RANK_KEY."""
    node_rank: int = argument(0, "ParallelConfig", "-r")
    """Number of this machine; 0 has the engine, and the others need --headless."""
    master_addr: str = argument("127.0.0.1", "ParallelConfig")
    """Address of machine 0, on which it listens for the others."""
    master_port: int = argument(29501, "ParallelConfig")
    """Port of machine 0."""
    worker_cls: str = argument("auto", "ParallelConfig")
    """Subclass of `quire.worker.worker.Worker` that each rank runs, as `package.module.Class`."""
    enforce_eager: bool = argument(False, "ModelConfig")
    """On a GPU, launch each kernel of each step, and record no CUDA graphs; the CPU has none."""
    disable_log_stats: bool = argument(False, "ObservabilityConfig")
    """Do not log a line of statistics every ten seconds."""
    log_level: LogLevel | None = argument(None, "LoggingConfig")
    """Least important messages that are logged; also from QUIRE_LOG_LEVEL, INFO by default."""
    log_config_file: str | None = argument(None, "LoggingConfig")
    """JSON file for Python's logging.config.dictConfig, which then configures all logging; also
    from VLLM_LOGGING_CONFIG_PATH."""
    logging_config: dict[str, Any] | None = argument(None, "LoggingConfig")
    """The two above in one: log_level and pylogging_config_file."""
    fail_on_environ_validation: bool = argument(False, "VllmConfig")
    """Refuse environment variables that begin with VLLM_ and that vLLM does not know; otherwise
    log a warning."""
    profiler_config: dict[str, Any] | None = argument(None, "ProfilerConfig")
    """Let start_profile record the engine's steps, in files for Perfetto: {"profiler": "torch",
    "torch_profiler_dir": DIRECTORY}, also torch_profiler_with_stack, torch_profiler_use_gzip,
    delay_iterations and max_iterations, as vLLM has them."""
    otlp_traces_endpoint: str | None = argument(None, "ObservabilityConfig")
    """OTLP endpoint to which a trace of each request is sent (needs `quire-engine[otel]`); also
    from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, nowhere by default."""

    def create_speculative_config(self) -> SpeculationConfig | None:
        """The method of proposing draft tokens; None: there are none. Raises ConfigError."""
        return speculation_config(
            self.speculative_config,
            is_enabled=self.speculation,
            aliases={
                "method": self.spec_method,
                "model": self.spec_model,
                "num_speculative_tokens": self.spec_tokens,
            },
            per_request_metrics=self.per_request_spec_decode_metrics,
        )

    def __repr__(self) -> str:
        return shown(self)

    def __getattr__(self, name: str) -> Any:
        """vLLM's default of an argument that does nothing here and was not given."""
        return default_of(name)


@checked_arguments
@dataclass
class AsyncEngineArgs(EngineArgs):
    """Arguments of `AsyncLLMEngine`."""

    enable_log_requests: bool = argument(False, "ObservabilityConfig")
    """Log each request's id, sizes and sampling parameters; at level DEBUG also the prompt."""
