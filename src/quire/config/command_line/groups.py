"""In which group of the help an engine argument is: vLLM's configuration classes."""

from __future__ import annotations

OWN = "Quire"
"""The group of arguments that vLLM does not have."""
OTHERS = "vLLM options that do nothing here"
"""The group of vLLM's arguments that are accepted at values without effect."""

_GROUPS = {
    "ModelConfig": (
        "model", "served_model_name", "tokenizer", "skip_tokenizer_init", "trust_remote_code",
        "revision", "tokenizer_revision", "hf_token", "hf_overrides", "dtype", "quantization",
        "max_model_len", "seed", "max_logprobs", "generation_config", "logits_processors",
        "worker_extension_cls",
        "override_generation_config", "enforce_eager",
    ),
    "LoadConfig": ("download_dir", "load_format"),
    "CacheConfig": (
        "block_size", "enable_prefix_caching", "kv_cache_dtype", "gpu_memory_utilization",
        "kv_cache_memory_bytes", "num_gpu_blocks_override", "kv_offloading_size",
        "kv_offloading_backend",
    ),
    "SchedulerConfig": (
        "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill",
        "long_prefill_token_threshold", "scheduling_policy", "max_num_queued_reqs",
        "max_num_queued_tokens", "stream_interval",
    ),
    "ParallelConfig": (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "distributed_executor_backend", "worker_cls",
    ),
    "ObservabilityConfig": ("otlp_traces_endpoint", "disable_log_stats", "enable_log_requests"),
    "ProfilerConfig": ("profiler_config",),
    "LoggingConfig": ("log_level", "log_config_file", "logging_config"),
    "StructuredOutputsConfig": ("structured_outputs_config", "reasoning_parser"),
    "VllmConfig": (
        "fail_on_environ_validation", "reasoning_config", "kv_transfer_config", "kv_events_config",
    ),
    "Frontend": ("chat_template",),
}  # fmt: skip

TITLES: dict[str, str] = {name: title for title, names in _GROUPS.items() for name in names}
"""The group of each argument that vLLM has too."""

COMMON = frozenset({
    "dtype", "quantization", "max_model_len", "kv_cache_memory_bytes",
    "max_num_seqs", "chat_template",
})  # fmt: skip
"""The arguments that the short help of a command has."""

DATASET_OPTIONS = frozenset({
    "dataset_name", "dataset_path", "num_prompts", "random_input_len", "random_output_len",
})  # fmt: skip
"""The options of a benchmark's requests that its short help has."""
