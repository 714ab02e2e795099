"""`quire bench latency` and `quire bench throughput`: the engine in this process, no HTTP.

Definitions, defaults and JSON keys are vLLM bench's, down to the sampling parameters
(temperature 1, end-of-sequence ignored).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from quire.bench.datasets import DatasetArgs, SampleRequest, load_requests
from quire.bench.metrics import save_json
from quire.config.engine_args import EngineArgs
from quire.errors import BackendError, ConfigError
from quire.log.writer import say

if TYPE_CHECKING:
    from quire.inputs import PromptType
    from quire.llm import LLM
    from quire.outputs import RequestOutput
    from quire.params import SamplingParams


PERCENTAGES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyArgs:
    """Options of the latency benchmark: one batch, repeated."""

    input_len: int = 32
    """Tokens of each prompt."""
    output_len: int = 128
    """Tokens generated for each prompt."""
    batch_size: int = 8
    """Prompts at once."""
    n: int = 1
    """Outputs per prompt."""
    num_iters_warmup: int = 10
    """Warm-up runs, which are not measured."""
    num_iters: int = 30
    """Measured runs."""
    disable_detokenize: bool = False
    """Do not detokenize in the measurement."""
    profile: bool = False
    """Profile one run with --profiler-config instead of measuring."""
    output_json: str | None = None
    """Write the results to this file."""

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "batch_size", "n", "num_iters"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputArgs:
    """Options of the throughput benchmark: all requests at once."""

    n: int = 1
    """Outputs per prompt."""
    num_warmups: int = 0
    """Requests that are run before the measurement."""
    disable_detokenize: bool = False
    """Do not detokenize in the measurement."""
    profile: bool = False
    """Profile the run with --profiler-config, which makes it slower."""
    output_json: str | None = None
    """Write the results to this file."""


def run_latency(args: LatencyArgs, engine_args: EngineArgs) -> dict[str, Any]:
    """Return seconds per batch over `num_iters` runs; an empty dict if a run is profiled."""
    llm = _make_llm(engine_args, args.input_len + args.output_len)
    rng = np.random.default_rng(0)
    high = min(10000, llm.llm_engine.model_config.vocab_size)
    ids = rng.integers(0, high, size=(args.batch_size, args.input_len)).tolist()
    prompts: list[PromptType] = [*ids]
    params = _params(args.output_len, args.n, args.disable_detokenize)

    def once() -> float:
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin

    for _ in tqdm(range(args.num_iters_warmup), desc="Warmup iterations"):
        once()
    if args.profile:
        with _profiled(llm):
            once()
        return {}
    latencies = [once() for _ in tqdm(range(args.num_iters), desc="Bench iterations")]
    result = {
        "model_id": engine_args.model,
        "speculation": _speculates(llm),
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": percentiles_of(latencies),
    }
    say(f"Avg latency: {result['avg_latency']} seconds")
    for share, value in percentiles_of(latencies).items():
        say(f"{share}% percentile latency: {value} seconds")
    if args.output_json is not None:
        save_json(Path(args.output_json), result)
    return result


def run_throughput(
    args: ThroughputArgs, dataset: DatasetArgs, engine_args: EngineArgs
) -> dict[str, Any]:
    """Tokens per second over all requests, from the first added to the last finished."""
    llm = _make_llm(engine_args, 0)
    requests = load_requests(dataset, llm.get_tokenizer().inner)
    limit = llm.llm_engine.model_config.max_model_len
    if too_long := [r for r in requests if r.prompt_len + r.output_len > limit]:
        longest = max(r.prompt_len + r.output_len for r in too_long)
        raise ConfigError(f"a request of {longest} tokens is longer than max_model_len ({limit})")
    run = _runner(llm, args)
    if args.num_warmups:
        run(requests[: args.num_warmups])
    with _profiled(llm) if args.profile else nullcontext():
        begin = time.perf_counter()
        outputs = run(requests)
        elapsed = time.perf_counter() - begin
    prompt_tokens = sum(len(output.prompt_token_ids or ()) for output in outputs)
    output_tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    total = prompt_tokens + output_tokens
    result = {
        "model_id": engine_args.model,
        "speculation": _speculates(llm),
        "elapsed_time": elapsed,
        "num_requests": len(requests),
        "total_num_tokens": total,
        "requests_per_second": len(requests) / elapsed,
        "tokens_per_second": total / elapsed,
        "output_tokens_per_second": output_tokens / elapsed,
    }
    say(
        f"Throughput: {len(requests) / elapsed:.2f} requests/s, {total / elapsed:.2f} total "
        f"tokens/s, {output_tokens / elapsed:.2f} output tokens/s"
    )
    say(f"Total num prompt tokens:  {prompt_tokens}")
    say(f"Total num output tokens:  {output_tokens}")
    if args.output_json is not None:
        save_json(Path(args.output_json), result)
    return result


def percentiles_of(seconds: Sequence[float]) -> dict[int, float]:
    """The percentiles that vLLM's benchmarks report."""
    values = np.percentile(seconds, PERCENTAGES)
    return {share: float(value) for share, value in zip(PERCENTAGES, values, strict=True)}


@contextmanager
def _profiled(llm: LLM) -> Iterator[None]:
    llm.start_profile()
    yield
    llm.stop_profile()


def _runner(
    llm: LLM, args: ThroughputArgs
) -> Callable[[Sequence[SampleRequest]], list[RequestOutput]]:
    def run(requests: Sequence[SampleRequest]) -> list[RequestOutput]:
        params = [_params(r.output_len, args.n, args.disable_detokenize) for r in requests]
        return llm.generate([r.prompt for r in requests], params, use_tqdm=True)

    return run


def _make_llm(engine_args: EngineArgs, needed_len: int) -> LLM:
    from quire.llm import LLM

    given = engine_args
    asked = given.speculative_config or given.spec_method or given.spec_model or given.spec_tokens
    if engine_args.load_format == "dummy" and not asked:
        say("Speculation is off: made-up weights repeat themselves; --speculative-config sets it")
        engine_args = dataclasses.replace(engine_args, speculation=False)
    llm = LLM.from_engine_args(engine_args)
    say(f"Speculation: {'on' if _speculates(llm) else 'off'}")
    limit = llm.llm_engine.model_config.max_model_len
    if needed_len > limit:
        raise ConfigError(
            f"--input-len and --output-len add up to {needed_len}, more than the model's {limit}"
        )
    return llm


def _speculates(llm: LLM) -> bool:
    """Whether the engine guesses tokens, which depends on the options and on the model."""
    return llm.llm_engine.vllm_config.scheduler.speculation is not None


def _params(output_len: int, n: int, disable_detokenize: bool) -> SamplingParams:
    from quire.params import SamplingParams

    return SamplingParams(
        n=n, temperature=1.0, ignore_eos=True, max_tokens=output_len,
        detokenize=not disable_detokenize,
    )  # fmt: skip


_TIMEOUT_S = 1800
_CHILD = """
import json, sys, time
from quire import LLM, EngineArgs, SamplingParams
from quire.errors import QuireError
begin = time.perf_counter()
try:
    llm = LLM.from_engine_args(EngineArgs(**json.loads(sys.argv[1])))
except QuireError as error:
    sys.exit(str(error))
ready = time.perf_counter() - begin
params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
print("ready", json.dumps({"startup": ready, "first_token_at": time.time()}), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupArgs:
    """Numbers of starts."""

    num_iters_cold: int = 3
    """Starts without Quire's own caches."""
    num_iters_warmup: int = 1
    """Starts between cold and warm that do not count."""
    num_iters_warm: int = 3
    """Starts with everything cached."""
    output_json: str | None = None
    """Write the results to this file."""


def run_startup(args: StartupArgs, engine_args: EngineArgs) -> dict[str, Any]:
    """Starts the engine again and again. Raises BackendError when a start fails."""
    cold, warm = [], []
    for _ in tqdm(range(args.num_iters_cold), desc="Cold startup iterations"):
        with tempfile.TemporaryDirectory() as empty:
            cold.append(start_once(engine_args, {"XDG_CACHE_HOME": empty}))
    for _ in tqdm(range(args.num_iters_warmup), desc="Warmup iterations"):
        start_once(engine_args, {})
    for _ in tqdm(range(args.num_iters_warm), desc="Warm startup iterations"):
        warm.append(start_once(engine_args, {}))
    result: dict[str, Any] = {"model_id": engine_args.model}
    for phase, starts in (("cold", cold), ("warm", warm)):
        if starts:
            result |= _phase(phase, starts)
    if args.output_json is not None:
        save_json(Path(args.output_json), result)
    return result


def start_once(engine_args: EngineArgs, environment: dict[str, str]) -> dict[str, float]:
    """One start: seconds to build the engine, and from process start to the first token."""
    settings = json.dumps(dataclasses.asdict(engine_args))
    # A hub cache must be found again though the cache directory is another one.
    from quire import env

    inherited = {**os.environ, "HF_HUB_CACHE": str(env.hub_cache_dir()), **environment}
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, settings],
        env=inherited, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ready ")]
    if done.returncode != 0 or not lines:
        cause = done.stderr.strip().rpartition("\n")[2]  # after lines of the log
        raise BackendError(f"the engine did not start: {cause}")
    found = json.loads(lines[-1].removeprefix("ready "))
    return {"startup": found["startup"], "first_token": found["first_token_at"] - begin}


def _phase(phase: str, starts: list[dict[str, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    say(f"\n{phase.upper()} STARTUP")
    for name, title in (("startup", "startup time"), ("first_token", "time to first token")):
        values = [start[name] for start in starts]
        result[f"avg_{phase}_{name}_time"] = float(np.mean(values))
        result[f"{phase}_{name}_times"] = values
        result[f"{phase}_{name}_percentiles"] = percentiles_of(values)
        say(f"Avg {title}: {np.mean(values):.2f} seconds")
    return result
