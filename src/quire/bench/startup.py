"""`quire bench startup`: how long a fresh process takes until its engine is ready.

Each start is a process of its own. `cold` starts with an empty cache directory for what
Quire itself stores; the page cache is the kernel's and stays as it is. Keys are vLLM
bench's; the time from the process's start to the first token is added.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from quire.bench.metrics import save_json
from quire.bench.offline import percentiles_of
from quire.config.engine_args import EngineArgs
from quire.errors import BackendError

_TIMEOUT_S = 1800
_CHILD = """
import json, sys, time
from quire import LLM, EngineArgs, SamplingParams
begin = time.perf_counter()
llm = LLM.from_engine_args(EngineArgs(**json.loads(sys.argv[1])))
ready = time.perf_counter() - begin
params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
print("ready", json.dumps({"startup": ready, "first_token_at": time.time()}), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupArgs:
    """How many starts."""

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
        raise BackendError(f"the engine did not start: {done.stderr.strip()[-600:]}")
    found = json.loads(lines[-1].removeprefix("ready "))
    return {"startup": found["startup"], "first_token": found["first_token_at"] - begin}


def _phase(phase: str, starts: list[dict[str, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    print(f"\n{phase.upper()} STARTUP")
    for name, title in (("startup", "startup time"), ("first_token", "time to first token")):
        values = [start[name] for start in starts]
        result[f"avg_{phase}_{name}_time"] = float(np.mean(values))
        result[f"{phase}_{name}_times"] = values
        result[f"{phase}_{name}_percentiles"] = percentiles_of(values)
        print(f"Avg {title}: {np.mean(values):.2f} seconds")
    return result
