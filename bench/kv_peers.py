"""Compares engines on conversations whose K/V is three times the size of the KV cache.

    python bench/kv_peers.py --model DIR [--clients 6 --rounds 4 --round-tokens 532]
        --peer vllm=/venvs/vllm/bin/python
        --peer vllm-offload=/venvs/vllm/bin/python
        --peer llamacpp=/venvs/llamacpp/bin/python --checkpoint llamacpp=FILE.gguf
        --env vllm=VLLM_CPU_OMP_THREADS_BIND:0-1,VLLM_CPU_KVCACHE_SPACE:1

Clients take turns: each sends what it has sent before with --round-tokens more, and gets one token.
Every request goes round all engines before the next one; those that wait are stopped. All have a KV
cache for a third of what there is at the end, and --host-bytes for what does not fit: Quire in
files, as it does by default, llama.cpp in memory (as `--cache-ram` of its server does), vLLM none
but with its OffloadingConnector (`vllm-offload`). An engine that does not start is left out.

Prints the share of prompt tokens that was found, and the mean of TTFT. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.command_line import named_values
from helpers.kv_engines import BLOCK, Bench, arguments, measure_all
from helpers.peer_process import Peer, PeerError, PeerSpec

VLLM_BLOCK = 32
"""Its attention on a CPU takes no other blocks than multiples of so many tokens."""
CHILD = Path(__file__).parent / "helpers" / "kv_peer_child.py"


class CachingPeer(Peer):
    """A started engine with its cache. Between questions it is stopped."""

    child = CHILD

    def ask_prompt(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds to the first token, and tokens that were found. Raises PeerError."""
        answer = self.answer({"prompt": prompt})
        return float(answer["seconds"]), int(answer["cached"])


def options_of(name: str, args: argparse.Namespace, pool_tokens: int, path: str) -> dict[str, Any]:
    """Return the options of an engine, with the same K/V memory for all engines."""
    longest = args.rounds * args.round_tokens + BLOCK
    if name.startswith("llamacpp"):
        return {"n_ctx": pool_tokens, "cache_bytes": args.host_bytes}
    block = VLLM_BLOCK if name.startswith("vllm") else BLOCK
    options: dict[str, Any] = {
        "max_model_len": longest, "enable_prefix_caching": True, "skip_tokenizer_init": True,
        "num_gpu_blocks_override": pool_tokens // block, "block_size": block,
    }  # fmt: skip
    if name.startswith("quire"):
        options |= {"kv_store_path": path, "kv_store_size": args.host_bytes}
    if name == "vllm-offload":
        options["kv_transfer_config"] = {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": args.host_bytes, "block_size": block,
            },
        }  # fmt: skip
    return options


def start(args: argparse.Namespace, pool_tokens: int, path: Path) -> dict[str, CachingPeer]:
    """Every engine that can be had."""
    pythons = {"quire": sys.executable, **named_values(args.peer, "--peer")}
    checkpoints = named_values(args.checkpoint, "--checkpoint")
    environments = named_values(args.env, "--env")
    peers = {}
    for name, python in pythons.items():
        of_engine = environments.get(name.partition("-")[0], "")
        extra = dict(pair.split(":", 1) for pair in of_engine.split(",") if pair)
        options = options_of(name, args, pool_tokens, str(path / "kv"))
        checkpoint = checkpoints.get(name, args.model)
        spec = PeerSpec(name, python, checkpoint, options, {"QUIRE_LOG_LEVEL": "WARNING", **extra})
        try:
            peers[name] = CachingPeer(spec, path / f"{name}.log", args.timeout)
        except PeerError as error:
            print(f"{name}: left out: {error}", flush=True)
        else:
            print(f"{name} {peers[name].version}: ready", flush=True)
    return peers


def run(bench: Bench, peers: dict[str, CachingPeer]) -> dict[str, Any]:
    """Every request of every round, through everybody by turns."""
    args = bench.args
    histories: list[list[int]] = [[] for _ in range(args.clients)]
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    cached: dict[str, list[int]] = {name: [] for name in peers}
    num_tokens = number = 0
    for _ in range(args.rounds):
        for history in histories:
            history += bench.tokens(args.round_tokens)
            num_tokens += len(history)
            names = [*peers]
            for name in names[number % len(names) :] + names[: number % len(names)]:
                ttft, found = peers[name].ask_prompt(history)
                seconds[name].append(ttft)
                cached[name].append(found)
            number += 1
    return {
        name: {
            "version": peers[name].version,
            "hit_ratio": sum(cached[name]) / num_tokens,
            "mean_ttft_s": statistics.mean(seconds[name]),
            "mean_ttft_last_round_s": statistics.mean(seconds[name][-args.clients :]),
        }
        for name in peers
    }


def main(words: Sequence[str] | None = None) -> int:
    """Prints a table."""
    numbers = {
        "clients": 6, "rounds": 4, "round_tokens": 532, "host_bytes": 8 << 30, "timeout": 300,
    }  # fmt: skip
    parser = arguments(__doc__, numbers)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--env", action="append", default=[], metavar="ENGINE=KEY:VALUE,...")
    args = parser.parse_args(words)
    pool_tokens = args.clients * args.rounds * args.round_tokens // 3 // BLOCK * BLOCK
    with tempfile.TemporaryDirectory(dir=args.directory) as path:
        peers = start(args, pool_tokens, Path(path))
        try:
            results = run(Bench(args), peers)
        finally:
            for peer in peers.values():
                peer.close()
    for found in results.values():
        ratio = found["mean_ttft_s"] / results["quire"]["mean_ttft_s"]
        found["mean_ttft_by_quire"] = ratio
    return measure_all(results, lambda name: results[name], args.json)


if __name__ == "__main__":
    sys.exit(main())
