"""Counting and showing: every number against one worked out by hand."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.frontend.arguments import EngineInput
from quire.frontend.observers.engine_metrics import EngineMetrics
from quire.frontend.output_processor import OutputProcessor
from quire.metrics.engine_series import FINISH_REASONS
from quire.metrics.exposition import Exposition
from quire.metrics.http_metrics import HttpMetrics
from quire.metrics.metric_set import MetricSet
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats


@pytest.fixture
def metrics() -> EngineMetrics:
    from fake_engine import fake_config

    return EngineMetrics(fake_config())


class Counted(OutputProcessor):
    """An output processor whose events are counted."""

    def __init__(self, metrics: EngineMetrics) -> None:
        super().__init__(None, observers=[metrics])

    def add(self, *ids: str, num_prompt_tokens: int = 10, at: float = 100.0) -> None:
        """One request of a user, whose core requests have these ids."""
        prompt, params = [1] * num_prompt_tokens, SamplingParams(max_tokens=20)
        cores = [
            EngineCoreRequest(
                request_id=name, prompt_token_ids=prompt, sampling_params=params, arrival_time=at
            )
            for name in ids
        ]
        self.add_request(EngineInput("r", None, prompt, params, cores, at))


@pytest.fixture
def counted(metrics: EngineMetrics) -> Counted:
    return Counted(metrics)


def step(at: float, *outputs: EngineCoreOutput, **stats: int) -> EngineCoreOutputs:
    snapshot = SchedulerStats(num_running=1, num_waiting=2, kv_cache_usage=0.25, **stats)
    return EngineCoreOutputs(outputs=list(outputs), stats=snapshot, timestamp=at)


def token(request_id: str, **fields: object) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=request_id, new_token_ids=[5], **fields)


def samples(*sets: MetricSet) -> dict[str, float]:
    text = Exposition(lambda: sets).text().decode()
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_equal_gaps_of_a_step_are_counted_each(metrics: EngineMetrics, counted: Counted) -> None:
    names = ["a", "b", "c"]
    for name in names:
        counted.add(name)
    counted.process_outputs(step(101.0, *map(token, names)))
    counted.process_outputs(step(101.5, *map(token, names[:2])))
    counted.process_outputs(step(103.0, *map(token, names)))
    gaps = metrics.series.inter_token_latency
    assert (gaps.count, gaps.sum) == (5, 0.5 + 0.5 + 1.5 + 1.5 + 2)
    assert sorted(metrics.recent_itl_s) == [0.5, 0.5, 1.5, 1.5, 2]


def test_a_request_is_counted_from_arrival_to_end(metrics: EngineMetrics, counted: Counted) -> None:
    series = metrics.series
    counted.add("a")
    counted.process_outputs(step(101.0, token("a", num_cached_tokens=4, scheduled_time=100.5)))
    counted.process_outputs(step(101.5, token("a")))
    counted.process_outputs(step(102.5, token("a", finish_reason="length")))
    assert series.prompt_tokens.value == 10
    assert series.prompt_tokens_cached.value == 4
    assert series.prompt_tokens_by_source.of("local_compute").value == 6
    assert series.generation_tokens.value == 3
    assert series.time_to_first_token.sum == 1.0
    assert (series.inter_token_latency.count, series.inter_token_latency.sum) == (2, 1.5)
    assert series.e2e_request_latency.sum == 2.5
    assert series.request_queue_time.sum == 0.5
    assert series.request_prefill_time.sum == 0.5
    assert series.request_decode_time.sum == 1.5
    assert series.request_inference_time.sum == 2.0
    assert series.request_time_per_output_token.sum == 0.75
    assert series.request_prefill_kv_computed_tokens.sum == 6
    assert series.iteration_tokens.sum == 7 + 1 + 1
    assert series.request_params_max_tokens.sum == 20
    ended = metrics.series.request_success
    assert {reason for reason in FINISH_REASONS if ended.of(reason).value} == {"length"}
    assert metrics.num_in_flight == 0


def test_the_prompt_of_n_outputs_counts_once(metrics: EngineMetrics, counted: Counted) -> None:
    counted.add("a.0", "a.1")
    counted.process_outputs(step(101.0, token("a.0"), token("a.1")))
    counted.process_outputs(step(102.0, token("a.0", finish_reason="stop")))
    assert metrics.series.request_params_n.sum == 0, "one is still running"
    counted.process_outputs(step(103.0, token("a.1", finish_reason="stop")))
    assert metrics.series.prompt_tokens.value == 10
    assert metrics.series.request_params_n.sum == 2
    assert metrics.series.request_max_num_generation_tokens.sum == 2
    assert metrics.series.request_success.of("stop").value == 2


def test_gauges_are_zero_once_nothing_runs(metrics: EngineMetrics, counted: Counted) -> None:
    counted.add("a")
    counted.process_outputs(step(101.0, token("a")))
    assert metrics.series.num_requests_running.value == 1
    assert metrics.series.kv_cache_usage_perc.value == 0.25
    counted.abort_requests(["r"])
    assert metrics.series.num_requests_running.value == 0
    # The step that was under way still counts the aborted request.
    counted.process_outputs(step(102.1, token("a"), num_preemptions=3))
    assert metrics.series.num_requests_running.value == 0
    assert metrics.series.num_preemptions.value == 3
    assert metrics.series.generation_tokens.value == 1


def test_everything_is_exposed_under_its_published_name(
    metrics: EngineMetrics, counted: Counted
) -> None:
    counted.add("a")
    counted.process_outputs(step(101.0, token("a", finish_reason="stop")))
    found = samples(metrics.series.metric_set)
    base = [("engine", "0"), ("model_name", "tiny")]

    def of(name: str, *labels: tuple[str, str]) -> float:
        return found[name + str(sorted([*base, *labels]))]

    assert of("vllm:prompt_tokens_total") == 10
    assert of("vllm:generation_tokens_total") == 1
    assert of("vllm:request_success_total", ("finished_reason", "stop")) == 1
    assert of("vllm:time_to_first_token_seconds_bucket", ("le", "0.75")) == 0
    assert of("vllm:time_to_first_token_seconds_bucket", ("le", "1.0")) == 1
    assert of("vllm:time_to_first_token_seconds_bucket", ("le", "+Inf")) == 1
    assert of("vllm:time_to_first_token_seconds_count") == 1
    assert of("vllm:iteration_tokens_total_count") == 1
    names = {name.partition("[")[0] for name in found}
    assert {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total", "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_sum", "vllm:request_queue_time_seconds_sum",
        "vllm:request_inference_time_seconds_sum", "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_sum", "vllm:request_prompt_tokens_sum",
        "vllm:request_generation_tokens_sum", "vllm:request_params_n_sum",
        "vllm:request_params_max_tokens_sum", "vllm:cache_config_info",
        "process_resident_memory_bytes",
    } <= names  # fmt: skip


def test_the_cache_is_described_by_its_labels(metrics: EngineMetrics) -> None:
    """100 blocks of 16 tokens, for requests of 512: 32 blocks each."""
    [name] = [one for one in samples(metrics.series.metric_set) if "cache_config_info" in one]
    labels = dict(ast.literal_eval(name.removeprefix("vllm:cache_config_info")))
    assert labels["kv_cache_size_tokens"] == "1600"
    assert labels["kv_cache_max_concurrency"] == "3.125"
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "100")
    assert labels["gpu_memory_utilization"] == "0.92"
    assert labels["num_gpu_blocks_override"] == labels["sliding_window"] == "None"


def test_cached_tokens_are_counted_by_their_source(
    metrics: EngineMetrics, counted: Counted
) -> None:
    counted.add("a", "b", num_prompt_tokens=100)
    first, second = token("a"), token("b")
    first.num_cached_tokens, second.num_cached_tokens = 80, 96
    first.loaded_tokens = {"memory": 16, "queue": 4, "disk": 32, "redis": 8}
    counted.process_outputs(step(101.0, first, second, num_prefix_hit_tokens=176))
    sources = metrics.series.prompt_tokens_cached_by_source
    assert {key: one.value for (key,), one in sources.series.items() if one.value} == {
        "device": 20, "host": 20, "disk": 32, "external_unspecified": 8,
    }  # fmt: skip
    assert metrics.series.prompt_tokens_cached.value == 80
    assert metrics.series.prefix_cache_hits.value == 176


def test_the_dashboard_asks_for_metrics_that_exist(
    metrics: EngineMetrics, counted: Counted
) -> None:
    dashboard = Path(__file__).parents[3] / "deploy" / "grafana" / "quire.json"
    panels = json.loads(dashboard.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm:|http_|process_)\w+", target["expr"])
    }
    counted.add("a")
    counted.process_outputs(step(101.0, token("a", finish_reason="stop")))
    http = HttpMetrics([])
    http.observe("/", "GET", 200, 0.1)
    exposed = {
        name.partition("[")[0] for name in samples(metrics.series.metric_set, http.metric_set)
    }
    assert len(asked) > 15
    assert asked <= exposed
