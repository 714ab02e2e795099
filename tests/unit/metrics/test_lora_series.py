"""`vllm:lora_requests_info`: the labels that endpoint pickers read."""

from __future__ import annotations

from quire.metrics.metric_set import MetricSet
from quire.metrics.part_series import LoRASeries


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
