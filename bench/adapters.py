"""What LoRA adapters cost: tokens per second of a model alone, with one adapter, and with eight.

    python bench/adapters.py MODEL [--quantization int8] [--streams 1 32] [--rank 16]

Writes random adapters of all linear layers into a temporary folder. Each case is timed several
times, in turn with the others, because the speed of the memory drifts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from quire import LLM, SamplingParams
from quire.adapters import LoRARequest
from quire.config.checkpoint.model_files import read_config
from quire.config.places.hub import resolve_model
from quire.models import build_program
from quire.program import Linear

PROMPT_TOKENS = 128


def write_adapter(folder: Path, config: dict, rank: int, seed: int) -> Path:
    """An adapter of all linear layers with small random numbers."""
    random = np.random.default_rng(seed)
    tensors = {}
    for op in build_program(config).ops:
        for part in op.weight.parts if isinstance(op, Linear) else ():
            rows, depth = part.slot_shape
            prefix = f"base_model.model.{part.name.removesuffix('.weight')}"
            a = random.standard_normal((rank, depth), np.float32) / np.sqrt(depth)
            tensors[f"{prefix}.lora_A.weight"] = a.astype(np.float32)
            b = 1e-3 * random.standard_normal((rows, rank), np.float32)
            tensors[f"{prefix}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": []}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def tokens_per_second(llm: LLM, streams: int, adapters: list[LoRARequest], length: int) -> float:
    """The speed of `streams` requests that use the adapters in turn."""
    prompts = [[(7 * i + j) % 256 for j in range(PROMPT_TOKENS)] for i in range(streams)]
    chosen = [adapters[i % len(adapters)] if adapters else None for i in range(streams)]
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    llm.generate(prompts, params, lora_request=chosen, use_tqdm=False)
    return streams * length / (time.perf_counter() - begin)


def main() -> None:
    """Prints one line for each number of streams and adapters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    config = read_config(resolve_model(args.model))
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            LoRARequest(
                f"a{i}", i + 1, str(write_adapter(Path(folder) / str(i), config, args.rank, i))
            )
            for i in range(8)
        ]
        llm = LLM(
            args.model, quantization=args.quantization, enable_lora=True, max_lora_rank=args.rank,
            enable_prefix_caching=False, speculation=False,
        )  # fmt: skip
        for streams in args.streams:
            cases = (
                {0: [], 1: adapters[:1], 8: adapters} if streams > 1 else {0: [], 1: adapters[:1]}
            )
            found: dict[int, list[float]] = {count: [] for count in cases}
            for number in range(args.rounds + 1):
                for count, own in cases.items():
                    speed = tokens_per_second(llm, streams, own, args.length)
                    if number:  # the first round loads the adapters
                        found[count].append(speed)
            base = statistics.median(found[0])
            for count, speeds in found.items():
                speed = statistics.median(speeds)
                print(
                    f"{streams:3} streams, {count} adapters: {speed:8.1f} tok/s, {speed / base:.1%}"
                )
        llm.close()


if __name__ == "__main__":
    main()
