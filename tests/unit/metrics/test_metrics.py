"""Kinds of counters, and the labels of HTTP metrics and of `vllm:lora_requests_info`."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from quire.metrics.buckets import one_two_five
from quire.metrics.exposition import Exposition
from quire.metrics.http_metrics import HttpMetrics
from quire.metrics.metric_set import MetricSet
from quire.metrics.part_series import LoRASeries
from quire.metrics.reader import Vector, read_metrics
from quire.metrics.series import Counter, Histogram


def test_http_labels_come_from_closed_sets() -> None:
    http = HttpMetrics(["/v1/models"])
    for index in range(50):
        http.observe(f"/{index}", f"VERB{index}", 200 + index, 0.1)
    http.observe("/v1/models", "GET", 200, 0.1)
    http.observe("/v1/models", "GET", 0, 0.1)
    text = Exposition(lambda: [http.metric_set]).text().decode()
    found = [s for family in text_string_to_metric_families(text) for s in family.samples]
    counters = [one.value for one in found if one.name == "http_requests_total"]
    assert len(counters) == 3
    assert sum(counters) == 52


def test_sizes_and_durations_of_http_are_summed() -> None:
    http = HttpMetrics(["/v1/models"])
    http.observe("/v1/models", "GET", 200, 0.2, request_bytes=10, reply_bytes=300)
    http.observe("/v1/models", "GET", 200, 0.3, request_bytes=20)
    text = Exposition(lambda: [http.metric_set]).text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        sample.name: sample.value for family in families.values() for sample in family.samples
    }
    assert families["http_request_size_bytes"].type == "summary"
    assert values["http_request_size_bytes_count"] == 2
    assert values["http_request_size_bytes_sum"] == 30
    assert values["http_response_size_bytes_sum"] == 300
    assert values["http_request_duration_highr_seconds_count"] == 2


def test_histogram_bounds_are_inclusive() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 5.1):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.count == 5
    assert one_two_five(300) == (1, 2, 5, 10, 20, 50, 100, 200)


def test_counters_by_position_are_read_as_a_vector() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    metrics = MetricSet({"engine": "0"})
    family = metrics.counters(name, "", ("position",), [])
    assert read_metrics(metrics) == [Vector(name, {"engine": "0"}, [])]
    for position, count in {"1": 2, "0": 5, "3": 1}.items():
        family.series[position,] = Counter()
        family.series[position,].inc(count)
    assert read_metrics(metrics) == [Vector(name, {"engine": "0"}, [5, 2, 0, 1])]


def test_adapters_wait_run_and_leave() -> None:
    make = MetricSet({"model_name": "m"})
    series = LoRASeries(make, 4)
    [family] = make.families

    def adapters() -> tuple[str, ...]:
        [labels] = family.series
        return labels

    assert family.name == "vllm:lora_requests_info"
    assert family.label_names == ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    assert adapters() == ("4", "", "")
    series.waits("b", 2)
    series.waits("a", 1)
    assert adapters() == ("4", "", "a,b")
    series.runs("b")
    series.runs("a")
    assert adapters() == ("4", "a,b", "b")
    series.ends("b", has_tokens=False)
    series.ends("a", has_tokens=True)
    assert adapters() == ("4", "b", "")
    series.ends("b", has_tokens=True)
    assert adapters() == ("4", "", "")
    assert next(iter(family.series.values())).value > 1e9
