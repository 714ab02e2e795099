"""The names, types, help texts and bounds of an engine's metrics: vLLM's names with `vllm:` where
they exist, otherwise Quire's own with `quire:`.

Written as a table; `EngineMetrics` records the values.
"""

from __future__ import annotations

from quire.config import EngineConfig
from quire.metrics import buckets
from quire.metrics.kv_store_series import KVStoreSeries
from quire.metrics.metric_set import MetricSet
from quire.metrics.part_series import ImageSeries, LoRASeries, RankSeries
from quire.version import __version__

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
CACHE_SOURCES = ("device", "host", "disk", "p2p", "external_unspecified")
"""Sources of the K/V of cached prompts; the last one stands for tiers beyond the disk."""
ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens", "image_bytes")


class EngineSeries:
    """All series of one engine as attributes; `metric_set` lists them."""

    def __init__(self, config: EngineConfig) -> None:
        model_name = config.model.served_model_name[0]
        self.metric_set = MetricSet({"model_name": model_name, "engine": "0"})
        self._make_gauges(self.metric_set)
        self._make_counters(self.metric_set)
        self._make_size_histograms(self.metric_set, config.model.max_model_len)
        self._make_time_histograms(self.metric_set)
        self.kv_store = None if config.kv_store is None else KVStoreSeries(self.metric_set)
        has_ranks = config.parallel.world_size_across_dp > 1
        self.ranks = RankSeries(self.metric_set) if has_ranks else None
        lora = config.lora
        most = 0 if lora is None else lora.max_loras or lora.max_cpu_loras
        self.lora = None if lora is None else LoRASeries(self.metric_set, most)
        self.images = None if config.model.images is None else ImageSeries(self.metric_set)
        self._set_facts(config)

    def _set_facts(self, config: EngineConfig) -> None:
        """Gauges of 1 whose labels are what stays the same."""
        device = {"backend": config.device.backend, "device": config.device.description}
        for name, documentation, facts in (
            (
                "vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
                cache_facts(config),
            ),
            ("quire:build_info", "The server's version.", {"version": __version__}),
            ("quire:device_info", "The backend, and what it computes on.", device),
        ):  # fmt: skip
            values = tuple(map(str, facts.values()))
            gauges = self.metric_set.gauges(name, documentation, tuple(facts), [values])
            gauges.of(*values).set(1)

    def _make_gauges(self, make: MetricSet) -> None:
        self.num_requests_running = make.gauge(
            "vllm:num_requests_running", "Number of requests in model execution batches."
        )
        self.num_requests_waiting = make.gauge(
            "vllm:num_requests_waiting", "Number of requests waiting to be processed."
        )
        self.num_requests_waiting_by_reason = make.gauges(
            "vllm:num_requests_waiting_by_reason",
            "Number of requests waiting to be processed, by reason.",
            ("reason",),
            [("capacity",), ("deferred",)],
        )
        self.expected_wait_seconds = make.gauge(
            "quire:expected_wait_seconds",
            "Seconds that a request which would arrive now waits for its first token because of "
            "those before it.",
        )
        self.kv_cache_usage_perc = make.gauge(
            "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."
        )
        self.engine_sleep_state = make.gauges(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "
            "awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level "
            "2.",
            ("sleep_state",),
            [("awake",), ("weights_offloaded",), ("discard_all",)],
        )
        self.engine_sleep_state.of("awake").set(1)
        self.engine_ready = make.gauge(
            "quire:engine_ready", "1 while the engine responds, 0 otherwise."
        )

    def _make_counters(self, make: MetricSet) -> None:
        self.prefix_cache_queries = make.counter(
            "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
        )
        self.prefix_cache_hits = make.counter(
            "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        self.num_preemptions = make.counter(
            "vllm:num_preemptions", "Cumulative number of preemption from the engine."
        )
        self.num_drafts = make.counter(
            "vllm:spec_decode_num_drafts", "Number of spec decoding drafts."
        )
        self.num_draft_tokens = make.counter(
            "vllm:spec_decode_num_draft_tokens", "Number of draft tokens."
        )
        self.num_accepted_tokens = make.counter(
            "vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens."
        )
        self.accepted_by_position = make.counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens per draft position.",
            ("position",),
            [],
        )
        self.prompt_tokens = make.counter(
            "vllm:prompt_tokens", "Number of prefill tokens processed."
        )
        self.prompt_tokens_by_source = make.counters(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            ("source",),
            [("local_compute",), ("local_cache_hit",), ("external_kv_transfer",)],
        )
        self.prompt_tokens_cached = make.counter(
            "vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external)."
        )
        self.prompt_tokens_cached_by_source = make.counters(
            "vllm:prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them.",
            ("source",),
            [(source,) for source in CACHE_SOURCES],
        )
        self.generation_tokens = make.counter(
            "vllm:generation_tokens", "Number of generation tokens processed."
        )
        self.request_success = make.counters(
            "vllm:request_success",
            "Count of successfully processed requests.",
            ("finished_reason",),
            [(reason,) for reason in FINISH_REASONS],
        )
        self.admission_rejections = make.counters(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ("reason",),
            [(reason,) for reason in ADMISSION_REASONS],
        )

    def _make_size_histograms(self, make: MetricSet, max_model_len: int) -> None:
        token_bounds = buckets.one_two_five(max_model_len)
        self.request_prompt_tokens = make.histogram(
            "vllm:request_prompt_tokens", "Number of prefill tokens processed.", token_bounds
        )
        self.request_generation_tokens = make.histogram(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", token_bounds
        )
        self.request_max_num_generation_tokens = make.histogram(
            "vllm:request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            token_bounds,
        )
        self.request_params_max_tokens = make.histogram(
            "vllm:request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            token_bounds,
        )
        self.request_prefill_kv_computed_tokens = make.histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            token_bounds,
        )
        self.iteration_tokens = make.histogram(
            "vllm:iteration_tokens_total",
            "Histogram of number of tokens per engine_step.",
            buckets.ITERATION_TOKENS,
        )
        self.request_params_n = make.histogram(
            "vllm:request_params_n",
            "Histogram of the n request parameter.",
            buckets.REQUEST_PARAMS_N,
        )
        self.request_num_preemptions = make.histogram(
            "vllm:request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            buckets.REQUEST_NUM_PREEMPTIONS,
        )

    def _make_time_histograms(self, make: MetricSet) -> None:
        self.time_to_first_token = make.histogram(
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            buckets.TIME_TO_FIRST_TOKEN_S,
        )
        self.inter_token_latency = make.histogram(
            "vllm:inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            buckets.INTER_TOKEN_LATENCY_S,
        )
        self.request_time_per_output_token = make.histogram(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            buckets.INTER_TOKEN_LATENCY_S,
        )
        bounds = buckets.REQUEST_LATENCY_S
        self.e2e_request_latency = make.histogram(
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            bounds,
        )
        self.request_queue_time = make.histogram(
            "vllm:request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            bounds,
        )
        self.request_inference_time = make.histogram(
            "vllm:request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            bounds,
        )
        self.request_prefill_time = make.histogram(
            "vllm:request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            bounds,
        )
        self.request_decode_time = make.histogram(
            "vllm:request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            bounds,
        )


def cache_facts(config: EngineConfig) -> dict[str, object]:
    """The labels of `vllm:cache_config_info`: the fields of vLLM's CacheConfig that apply to
    Quire."""
    cache, length = config.cache, config.model.max_model_len
    sizes = (cache.num_blocks, length, config.scheduler.max_num_batched_tokens, cache.block_size)
    windows = [group.window for group in cache.layout.groups if group.window is not None]
    return {
        "block_size": cache.block_size,
        "cache_dtype": cache.kv_cache_dtype,
        "cache_hit_alignment_tokens": cache.block_size,
        "effective_attention_block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "gpu_memory_utilization": cache.asked.utilization,
        "hash_block_size": cache.block_size,
        "is_attention_free": False,
        "kv_cache_max_concurrency": cache.layout.max_concurrency(*sizes),
        "kv_cache_memory_bytes": cache.asked.cache_bytes,
        "kv_cache_size_tokens": cache.layout.tokens_held(*sizes),
        "num_gpu_blocks": cache.num_blocks,
        "num_gpu_blocks_override": cache.asked.num_blocks,
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": min(windows, default=None),
    }
