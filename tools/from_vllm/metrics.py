"""The tables of metrics."""

from __future__ import annotations

from dataclasses import replace

from tools.from_vllm.markdown import code, codes, table

from quire.config.engine_args import EngineArgs
from quire.config.records import ParallelConfig
from quire.images.config import ImagesConfig
from quire.metrics.engine_series import EngineSeries
from quire.metrics.http_metrics import HttpMetrics
from quire.metrics.metric_set import MetricSet
from quire.metrics.sleep_metrics import SleepMetrics
from quire.planning.plan import build_engine_config

ABSENT: dict[str, tuple[str, ...]] = {
    "the K/V that is kept beyond the KV cache has its own metrics: `quire:kv_store_*`": (
        "vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits",
        "vllm:num_requests_kv_fetch_by_stage", "vllm:kv_offload_*", "vllm:simple_kv_offload_*",
        "vllm:nixl_*", "vllm:mooncake_*", "vllm:umbp_*", "vllm:hf3fs_*", "vllm:hisparse_*",
    ),
    "Quire does not run diffusion models": ("vllm:diffusion_*",),
    "calls of tools are not counted": ("vllm:tool_call_parser_invocations",),
    "a request whose logits hold a NaN ends with an error, and `vllm:request_success` counts it": (
        "vllm:corrupted_requests",
    ),
    "the options that switch them on are refused": (
        "vllm:kv_block_lifetime_seconds", "vllm:kv_block_idle_before_evict_seconds",
        "vllm:kv_block_reuse_gap_seconds", "vllm:estimated_flops_per_gpu",
        "vllm:estimated_read_bytes_per_gpu", "vllm:estimated_write_bytes_per_gpu",
    ),
    "the log says how long new weights took": ("vllm:rl_weight_update_*",),
    "there are no WebSockets": ("vllm:websocket_*",),
    "they tell of Python, not of the engine": ("python_info", "python_gc_*"),
}  # fmt: skip
"""Metrics of vLLM that are not exposed, by the reason."""


def exposed() -> str:
    """Everything at /metrics but the process's own."""
    config = build_engine_config(EngineArgs(kv_store=True, enable_lora=True))
    model = replace(config.model, images=ImagesConfig({"image": 1}))
    parallel = ParallelConfig(data_parallel_size=2)
    engine = EngineSeries(replace(config, model=model, parallel=parallel))
    sets = [engine.metric_set, HttpMetrics([]).metric_set, SleepMetrics().metric_set]
    return table(["metric", "type", "labels", "what"], [row for one in sets for row in _rows(one)])


def _rows(metric_set: MetricSet) -> list[list[str]]:
    return [
        [
            code(family.name + "_total" * (family.kind == "counter")),
            family.kind,
            codes([*metric_set.base_labels, *family.label_names]),
            family.documentation,
        ]
        for family in metric_set.families
    ]


def absent() -> str:
    """Table of the metrics that vLLM exposes and Quire does not."""
    rows = [[code(name), reason] for reason, names in ABSENT.items() for name in names]
    return table(["metric", "why"], rows)
