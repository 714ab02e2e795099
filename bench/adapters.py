"""The cost of LoRA adapters: tokens per second of a model alone, with one adapter, and with eight.

    python bench/adapters.py MODEL [--quantization int8] [--streams 1 32] [--rank 16]
                                   [--vllm /venvs/vllm/bin/python]

Writes random adapters of all linear layers into a temporary folder. Each case is timed several
times, in turn with the others, because the speed of the memory drifts. vLLM, if its Python is
given, does the same work with the same adapters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from helpers.peer_process import Peer, PeerSpec, usual_environment
from safetensors.numpy import save_file

from quire.backends.cpu import default_num_threads
from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.models import build_program
from quire.program import Linear

PROMPT_TOKENS = 128


def write_adapter(folder: Path, config: dict, rank: int, seed: int) -> Path:
    """An adapter of all linear layers with small random numbers."""
    random = np.random.default_rng(seed)
    tensors, modules = {}, set()
    for op in build_program(config).ops:
        for part in op.weight.parts if isinstance(op, Linear) else ():
            rows, depth = part.slot_shape
            prefix = f"base_model.model.{part.name.removesuffix('.weight')}"
            modules.add(prefix.rpartition(".")[2])
            a = random.standard_normal((rank, depth), np.float32) / np.sqrt(depth)
            tensors[f"{prefix}.lora_A.weight"] = a.astype(np.float32)
            b = 1e-3 * random.standard_normal((rows, rank), np.float32)
            tensors[f"{prefix}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(modules)}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def prompts_for(streams: int) -> list[list[int]]:
    """Token ids of each request."""
    return [[(7 * i + j) % 256 for j in range(PROMPT_TOKENS)] for i in range(streams)]


def measure(peer: Peer, streams: int, adapters: Sequence[str], length: int) -> float:
    """Tokens per second of `streams` requests that use the adapters in turn."""
    chosen = [adapters[i % len(adapters)] for i in range(streams)] if adapters else ()
    return streams * length / peer.ask(prompts_for(streams), length, chosen)


def start(name: str, python: str, options: dict[str, object], args: argparse.Namespace) -> Peer:
    """An engine that takes adapters. Raises PeerError."""
    model = str(resolve_model(args.model))
    settings = {
        "enable_lora": True, "max_loras": 8, "max_lora_rank": args.rank, "max_model_len": 512,
        **options,
    }  # fmt: skip
    spec = PeerSpec(name, python, model, settings, usual_environment(name, args.threads))
    return Peer(spec, Path(tempfile.gettempdir()) / f"adapters-{name}.log", args.timeout)


def main() -> None:
    """Prints one line for each number of streams and adapters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--timeout", type=float, default=600, help="seconds for an answer")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM")
    args = parser.parse_args()
    config = read_config(resolve_model(args.model))
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            str(write_adapter(Path(folder) / str(i), config, args.rank, i)) for i in range(8)
        ]
        quantised = {"quantization": args.quantization, "speculation": False}
        peers = [start("quire", sys.executable, quantised, args)]
        try:
            if args.vllm:
                peers.append(start("vllm", args.vllm, {"dtype": "bfloat16"}, args))
            for streams in args.streams:
                report(peers, streams, adapters, args)
        finally:
            for peer in peers:
                peer.close()


def report(peers: list[Peer], streams: int, adapters: list[str], args: argparse.Namespace) -> None:
    """Prints a line for each engine and number of adapters."""
    counts = [0, 1, len(adapters)] if streams > 1 else [0, 1]
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(args.rounds + 1):
        for count in counts:
            for peer in peers:
                speed = measure(peer, streams, adapters[:count], args.length)
                if number:  # the first round loads the adapters
                    found[peer.spec.name, count].append(speed)
    for (name, count), speeds in found.items():
        ratios = [speed / base for speed, base in zip(speeds, found[name, 0], strict=True)]
        print(
            f"{name:6} {streams:3} streams, {count} adapters: {statistics.median(speeds):8.1f} "
            f"tok/s, {statistics.median(ratios):.1%} of the speed without adapters",
            flush=True,
        )


if __name__ == "__main__":
    main()
