"""Times whole steps of a checkpoint on the CPU backend, and where in them the time goes.

    python native/profile_step.py MODEL_DIR [--isa amx] [--format int8_w8a8] [--kv int8]
        [--case prefill:1x512]

A case is kind:REQUESTSxTOKENS: `prefill:1x512` computes 512 new tokens, `decode:32x160` one token
each of 32 requests whose context has 160 tokens. Weights may be random; the tokens are.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import numpy as np

from quire.backends.base import CompileOptions, KVCacheSpec, SamplingColumns, StepBatch
from quire.backends.cpu import CpuBackend
from quire.backends.cpu.model import CpuModel
from quire.config.checkpoint.model_files import read_config
from quire.config.quantization import MEANINGS, Quantization
from quire.models import build_program, name_map
from quire.program import keep_all
from quire.program.passes import run_passes
from quire.weights import bind, open_checkpoint

CASES = ("decode:1x160", "decode:32x160", "decode:32x512", "prefill:1x512", "prefill:1x2048")
BLOCK_SIZE = 16
MAX_TOKENS = 2048
NUM_BLOCKS = 1088


def load(
    directory: Path, backend: CpuBackend, kv_dtype: str, quantization: Quantization | None
) -> CpuModel:
    """The checkpoint in bfloat16, its matrices in this format."""
    config = read_config(directory)
    program = run_passes(build_program(config), quantization)
    store = open_checkpoint(directory)
    options = CompileOptions("bfloat16", MAX_TOKENS, max_num_seqs=256, max_model_len=32768)
    kv = KVCacheSpec(NUM_BLOCKS, BLOCK_SIZE, kv_dtype, keep_all(program))
    bound = bind(program, store, name_map(config).canonical)
    model = backend.compile(program, bound, kv, options)
    store.close()
    if not isinstance(model, CpuModel):
        raise TypeError(f"{model} is no CpuModel")
    return model


def fill_cache(model: CpuModel, num_blocks: int) -> None:
    """Ordinary numbers in every block: memory that was never written reads as one shared page.

    They are what a block has that was written.
    """
    model.step(make_batch("prefill", 1, BLOCK_SIZE, np.zeros(1, np.int32)))
    data = model.read_blocks(np.zeros(1, np.int32))
    for block in range(num_blocks):
        model.write_blocks(np.array([block], np.int32), data)


def make_batch(kind: str, requests: int, tokens: int, table: np.ndarray) -> StepBatch:
    """`requests` of `tokens` each: all new, or only the last one."""
    new = tokens if kind == "prefill" else 1
    starts = np.arange(requests + 1, dtype=np.int32) * new
    positions = np.tile(np.arange(tokens - new, tokens, dtype=np.int32), requests)
    blocks = -(-tokens // BLOCK_SIZE)
    rows = starts[1:] - 1
    return StepBatch(
        token_ids=np.random.default_rng(0).integers(0, 1000, requests * new).astype(np.int32),
        positions=positions,
        seq_starts=starts,
        context_lens=np.full(requests, tokens, np.int32),
        block_tables=table[: requests * blocks].reshape(requests, 1, blocks),
        logits_rows=rows,
        sampling=SamplingColumns(
            temperature=np.zeros(requests, np.float32),
            seeds=np.zeros(requests, np.uint64),
            counters=np.zeros(requests, np.uint64),
        ),
    )


def measure(model: CpuModel, case: str, table: np.ndarray, seconds: float) -> None:
    """Prints the median step time and the profile of a case."""
    kind, _, size = case.partition(":")
    requests, tokens = map(int, size.split("x"))
    batch = make_batch(kind, requests, tokens, table)
    model.step(batch)
    model.profile(True)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        model.step(batch)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    new = requests * tokens if kind == "prefill" else requests
    print(f"{case}: {median * 1e3:.2f} ms (best {min(times) * 1e3:.2f}), {new / median:.1f} tok/s")
    parts = model.profile_seconds()
    for name, spent in parts.items():
        print(f"    {spent * 1e3:9.3f} ms  {spent / sum(parts.values()):6.1%}  {name}")


def main() -> None:
    """Reads the arguments, loads once, measures each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--format", choices=MEANINGS, help="leave it out for bfloat16")
    parser.add_argument("--kv", default="bfloat16", help="number format of the KV cache")
    parser.add_argument("--case", action="append")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    backend = CpuBackend(arguments.threads, arguments.isa)
    print(backend.capabilities.description)
    begin = time.perf_counter()
    model = load(arguments.model, backend, arguments.kv, arguments.format)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"loaded in {time.perf_counter() - begin:.2f} s, peak {peak:.0f} MiB, {model.memory()}")
    fill_cache(model, NUM_BLOCKS)
    table = np.random.default_rng(1).permutation(NUM_BLOCKS).astype(np.int32)
    for case in arguments.case or CASES:
        measure(model, case, table, arguments.seconds)


if __name__ == "__main__":
    main()
