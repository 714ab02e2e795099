"""What `LLM` tells of itself: metrics under vLLM's names, traces to an endpoint, facts."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.frontend.offline.llm_engine import LLMEngine
from quire.llm import LLM
from quire.metrics.reader import Counter, Gauge, Histogram
from quire.params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def make(model_dir: Path, **options: Any) -> LLM:
    return LLM(str(model_dir), backend="reference", max_model_len=128, **options)


def test_metrics(model_dir: Path) -> None:
    with make(model_dir, disable_log_stats=False) as llm:
        llm.generate(["a", "bc"], PARAMS, use_tqdm=False)
        found = {metric.name: metric for metric in llm.get_metrics()}
    assert all(name.startswith("vllm:") for name in found)
    labels = {"model_name": str(model_dir), "engine": "0"}
    tokens = found["vllm:generation_tokens"]
    assert tokens == Counter("vllm:generation_tokens", labels, 8)
    assert type(tokens.value) is int  # type: ignore[attr-defined]
    running = found["vllm:num_requests_running"]
    assert running == Gauge("vllm:num_requests_running", labels, 0.0)
    sizes = found["vllm:request_prompt_tokens"]
    assert isinstance(sizes, Histogram)
    assert (sizes.count, sizes.sum) == (2, 3)
    assert list(sizes.buckets.items())[:3] == [("1.0", 1), ("2.0", 2), ("5.0", 2)]
    assert sizes.buckets["+Inf"] == sizes.count


def test_metrics_need_statistics(model_dir: Path) -> None:
    with make(model_dir) as llm, pytest.raises(ConfigError, match="disable_log_stats=False"):
        llm.get_metrics()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP endpoint over HTTP, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_traces_are_sent(model_dir: Path, collector: tuple[str, list[bytes]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    endpoint, bodies = collector
    with make(model_dir, otlp_traces_endpoint=endpoint) as llm:
        llm.generate(["a", "b"], PARAMS, use_tqdm=False)
    sent = b"".join(bodies)
    assert sent.count(b"llm_request") == 2
    assert str(model_dir).encode() in sent


def test_facts(model_dir: Path) -> None:
    with make(model_dir) as llm:
        config = llm.llm_engine.vllm_config
        assert llm.model_config is config.model_config
        assert llm.model_config.get_vocab_size() == 288
        assert llm.model_config.hf_config["vocab_size"] == 288
        assert llm.model_config.hf_config.vocab_size == 288  # type: ignore[attr-defined]
        assert llm.model_config.hf_text_config.num_hidden_layers > 0  # type: ignore[attr-defined]
        assert getattr(llm.model_config.hf_config, "no_such_key", None) is None
        assert (llm.model_config.runner_type, llm.runner_type) == ("generate", "generate")
        assert llm.supported_tasks == llm.llm_engine.get_supported_tasks() == ("generate",)
        assert config.parallel_config.world_size == llm.get_world_size() == 1
        assert config.cache_config.num_gpu_blocks == config.cache.num_blocks
        assert llm.renderer.tokenizer is llm.get_tokenizer()
        assert llm.input_processor is llm.llm_engine.input_processor
        assert repr(llm) == f"LLM(model={str(model_dir)!r})"
        assert next(llm.request_counter) == 0


def test_engines_of_a_configuration(model_dir: Path) -> None:
    with make(model_dir) as llm:
        config = llm.llm_engine.vllm_config
    engine = LLMEngine.from_vllm_config(config)
    engine.add_request("r", "a", PARAMS)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    engine.do_log_stats_with_interval()
    engine.shutdown()
    assert outputs[-1].finished
    args = EngineArgs(str(model_dir))
    with pytest.raises(ConfigError, match="stat_loggers must be a list"):
        LLMEngine.from_vllm_config(config, stat_loggers=[3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="enable_multiprocessing must be False"):
        LLMEngine.from_engine_args(args, enable_multiprocessing=True)


def test_calls_of_the_worker(model_dir: Path) -> None:
    with make(model_dir) as llm:
        [text] = llm.collective_rpc("get_model_inspection")
        assert "rms_norm" in text
        assert llm.collective_rpc("check_health") == [None]
        assert llm.collective_rpc(lambda worker, a, b: (type(worker).__name__, a, b), args=(1,),
                                  kwargs={"b": 2}) == [("Worker", 1, 2)]  # fmt: skip
        [report] = llm.apply_model(lambda model: model.memory())
        assert report.weight_bytes > 0
        with pytest.raises(ConfigError, match="a worker has no method 'fly'; it has apply_model"):
            llm.collective_rpc("fly")
        with pytest.raises(ConfigError, match="a worker has no method '_load'"):
            llm.collective_rpc("_load")
        with pytest.raises(ConfigError, match=r"check_health.* does not accept these arguments"):
            llm.collective_rpc("check_health", args=(1,))
        with pytest.raises(ConfigError, match="timeout is not supported"):
            llm.collective_rpc("check_health", timeout=1.0)


def test_an_llm_is_freed_as_soon_as_nobody_has_it(model_dir: Path) -> None:
    import gc
    import weakref

    llm = make(model_dir)
    llm.generate("a", PARAMS, use_tqdm=False)
    worker = weakref.ref(llm.llm_engine.engine_core.executor._worker)  # type: ignore[attr-defined]
    gc.disable()
    try:
        del llm
        assert worker() is None
    finally:
        gc.enable()


def test_steps_are_recorded(model_dir: Path, tmp_path: Path) -> None:
    chosen = {"profiler": "torch", "torch_profiler_dir": str(tmp_path)}
    with make(model_dir, profiler_config=chosen) as llm:
        llm.start_profile("mine", max_iterations=2)
        llm.generate(["a"], PARAMS, use_tqdm=False)
        llm.stop_profile()
        [path] = tmp_path.iterdir()
        assert path.name.startswith("mine_")
        with gzip.open(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        assert [event["name"] for event in events].count("step") == 2
        assert any("Scheduler.schedule" in event["name"] for event in events)
        with pytest.raises(ConfigError, match="max_iterations"):
            llm.llm_engine.start_profile(max_iterations=-1)
        with pytest.raises(ConfigError, match="profiler_kwargs must be None or empty"):
            llm.start_profile(profiler_kwargs={"with_stack": True})


def test_nothing_is_recorded_without_a_directory(model_dir: Path) -> None:
    with make(model_dir) as llm, pytest.raises(ConfigError, match="torch_profiler_dir"):
        llm.start_profile()
