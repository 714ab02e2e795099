"""The routes of SGLang that routers read."""

from __future__ import annotations

import re

from .conftest import Harness, MakeHarness


def test_the_facts_that_routers_read(harness: Harness) -> None:
    info = harness.request("GET", "/get_server_info").json()
    config = harness.model.config
    size = config.cache.block_size
    assert info["kv_block_size"] == info["page_size"] == size
    assert info["max_total_num_tokens"] == size * config.cache.num_blocks
    assert info["served_model_name"] == harness.model.names[0]
    model = harness.request("GET", "/model_info").json()
    assert model == harness.request("GET", "/get_model_info").json()
    assert (model["is_generation"], model["model_path"]) == (True, config.model.model)
    assert model["architectures"] == list(config.model.hf_config["architectures"])


def test_the_load_is_a_list_with_the_tokens(make_harness: MakeHarness) -> None:
    idle = {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    assert make_harness().request("GET", "/get_load").json() == [idle]
    keyed = make_harness(keys=("secret",))
    assert keyed.request("GET", "/get_load").status_code == 401


def test_the_metrics_that_endpoint_pickers_read(harness: Harness) -> None:
    """llm-d's `core-metrics-extractor` and the Gateway API inference extension take the value of
    a gauge, and two labels of `vllm:cache_config_info` as numbers."""
    lines = harness.request("GET", "/metrics").text.splitlines()
    kinds = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE vllm:"))
    series = dict(line.rsplit(" ", 1) for line in lines if line.startswith("vllm:"))
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert kinds[f"vllm:{name}"] == "gauge"
        [value] = [value for key, value in series.items() if key.startswith(f"vllm:{name}{{")]
        assert float(value) == 0
    [info] = [key for key in series if key.startswith("vllm:cache_config_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
    cache = harness.model.config.cache
    assert int(labels["block_size"]) == cache.block_size
    assert int(labels["num_gpu_blocks"]) == cache.num_blocks
    assert float(series[info]) == 1
