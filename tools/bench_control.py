"""Measures the Python around the native step: schedule, batch, update, outputs.

    python tools/bench_control.py [--requests 1 32 256] [--steps 300]

Runs the real engine on a model that computes nothing, and prints microseconds per step and
the goal of 300 us + 5 us per request.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from quire.backends.base import (
    CompiledModel,
    MemoryReport,
    SamplingColumns,
    StepBatch,
    StepOutput,
)
from quire.config.kv_groups import FullGroup, KVShape
from quire.config.kv_layout import KVLayout
from quire.config.records import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from quire.core.engine_core import EngineCore
from quire.executor import Executor
from quire.frontend.offline.llm_engine import LLMEngine
from quire.params import RequestOutputKind, SamplingParams
from quire.program import OpPlace
from quire.protocol import SchedulePlan, StepResult
from quire.worker.input_batch import InputBatch
from quire.worker.model_runner import ModelRunner

_MAX_MODEL_LEN = 4096
_VOCAB = 32_000
_LAYOUT = KVLayout((FullGroup((0,), KVShape(1, 1, 1)),), 1)


class NullModel(CompiledModel):
    """Chooses a fixed token for every row, at once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def step(self, batch: StepBatch) -> StepOutput:
        begin = time.perf_counter()
        output = StepOutput(np.full(len(batch.logits_rows), 100, np.int32))
        self.seconds += time.perf_counter() - begin
        return output

    def sample(self, logits: np.ndarray, columns: SamplingColumns) -> StepOutput:
        raise NotImplementedError

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        return [None] * len(batch.context_lens)

    def read_blocks(self, block_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def write_blocks(self, block_ids: np.ndarray, data: np.ndarray) -> None:
        raise NotImplementedError

    def clear_behind(self, block: np.ndarray, group: int, num_tokens: int) -> None:
        raise NotImplementedError

    def discard_kv(self) -> None:
        pass

    def memory(self) -> MemoryReport:
        return MemoryReport(0, 0, 0)

    def close(self) -> None:
        pass


class NullExecutor(Executor):
    """The real model runner on the null model."""

    def __init__(self, config: EngineConfig) -> None:
        batch = InputBatch(config.scheduler.max_num_seqs, 1, _MAX_MODEL_LEN // 16, _VOCAB)
        self._runner = ModelRunner(NullModel(), batch)
        self._submitted: deque[SchedulePlan] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        begun = self._runner.begin(self._submitted.popleft())
        return self._runner.finish(begun, self._runner.model.step(begun.batch))

    def call(self, method: str, *args: Any) -> list[Any]:
        raise AttributeError(f"{method}{args}")

    def failure(self) -> str | None:
        return None

    def shutdown(self) -> None:
        pass


def make_engine(tokenizer_path: Path | None) -> LLMEngine:
    """An engine of 256 rows and plenty of blocks."""
    config = EngineConfig(
        model=ModelConfig(
            model="null", path=Path(), tokenizer_path=tokenizer_path, hf_config={},
            architecture="Null", dtype="float32", max_model_len=_MAX_MODEL_LEN,
            vocab_size=_VOCAB, served_model_name=("null",),
        ),
        cache=CacheConfig(16, 256 * 256, "float32", True, 1, _LAYOUT),
        scheduler=SchedulerConfig(8192, 256),
        device=DeviceConfig("reference", None, 1),
        observability=ObservabilityConfig(log_stats=False, stats_interval_s=10.0),
    )  # fmt: skip
    return LLMEngine(config, EngineCore(config, NullExecutor(config)))


def measure(engine: LLMEngine, count: int, steps: int, params: SamplingParams) -> list[float]:
    """Microseconds of each decode step with `count` requests."""
    for number in range(count):
        prompt = [(number * 131 + i * 7) % _VOCAB for i in range(64)]
        engine.add_request(f"{count}-{number}", prompt, params)
    engine.step()
    found = []
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        begin = time.perf_counter()
        engine.step()
        found.append((time.perf_counter() - begin) * 1e6)
    engine.abort_all()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokenizer", type=Path, help="directory; also measures detokenising")
    args = parser.parse_args()
    base = {"max_tokens": args.steps + 10, "ignore_eos": True}
    kinds = {
        "final only": SamplingParams(**base, output_kind=RequestOutputKind.FINAL_ONLY),
        "delta": SamplingParams(**base, output_kind=RequestOutputKind.DELTA),
        "delta, top_p": SamplingParams(
            **base, output_kind=RequestOutputKind.DELTA, top_p=0.9, top_k=20, temperature=0.7
        ),
    }
    for name, params in kinds.items():
        engine = make_engine(args.tokenizer)
        for count in args.requests:
            micros = measure(engine, count, args.steps, params)
            goal = 300 + 5 * count
            median, worst = statistics.median(micros), sorted(micros)[int(len(micros) * 0.99) - 1]
            print(
                f"{name:14} {count:4} requests: {median:7.0f} us median, {worst:7.0f} us p99, "
                f"goal {goal} us, {median / goal:.0%}"
            )


if __name__ == "__main__":
    main()
