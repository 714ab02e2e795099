"""Compares Quire with its peers: the same checkpoint, prompts and settings, turn by turn.

    python bench/peers.py --model DIR
        --peer vllm=/venvs/vllm/bin/python
        --peer openvino-int8=/venvs/openvino/bin/python --checkpoint openvino-int8=EXPORTED_DIR
        --peer llamacpp-q8=/venvs/llamacpp/bin/python --checkpoint llamacpp-q8=FILE.gguf
        --peer quire-int8=python --option quire-int8='{"quantization": "int8_w8a8"}'

The strongest peers of 8 and 4 bits, and one checkpoint in two engines:

        --peer vllm-w8a8=/venvs/vllm-zentorch/bin/python --checkpoint vllm-w8a8=W8A8_DIR
        --peer openvino-int8=/venvs/openvino/bin/python --checkpoint openvino-int8=EXPORTED_DIR
        --option openvino-int8='{"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}'
        --peer quire-awq=python --checkpoint quire-awq=AWQ_DIR
        --peer vllm-awq=/venvs/vllm/bin/python --checkpoint vllm-awq=AWQ_DIR

vLLM takes zentorch's kernels where that package is installed too. W8A8, W4A16, AWQ and GPTQ
checkpoints are written by `bench/quantised_checkpoint.py`. OpenVINO has one more setting to try:
`"INFERENCE_PRECISION_HINT": "f32"`.

A peer's engine is its name up to the first dash. Every engine is loaded once and kept in a
process of its own; each workload goes round all of them before the next begins, at least
three rounds, with a memory-bandwidth probe before each round, and around each stream of one
request. Idle engines are stopped. Prints medians, ratios to Quire and the share of what the
memory allows; writes JSON and SVG.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.bandwidth import read_bandwidth
from helpers.command_line import named_values
from helpers.peer_process import Peer, PeerError, PeerSpec, usual_environment
from helpers.peer_report import chart, table, weight_bytes


@dataclass(frozen=True)
class Workload:
    """`count` prompts of `input_len` tokens, `output_len` tokens each."""

    name: str
    count: int
    input_len: int
    output_len: int
    is_after: bool = False
    """Whether only the tokens after the first one are timed: those of a long context."""
    is_usual: bool = True
    """Whether it is run if no workloads are named."""

    @property
    def reads_memory(self) -> bool:
        """Whether its speed is that of memory: every token reads all weights for itself."""
        return self.count == 1 and self.output_len > 1

    def value(self, seconds: float) -> float:
        """Tokens per second: of the output, or of the prompt where that is the work."""
        if self.output_len == 1:
            return self.count * self.input_len / seconds
        if self.is_after:
            return self.count * (self.output_len - 1) / seconds
        return self.count * self.output_len / seconds

    def prompts(self, round_number: int, id_end: int) -> list[list[int]]:
        """Token ids below `id_end`: the same for every engine, others in every round."""
        rng = random.Random(f"{self.name} {round_number}")
        id_start = min(100, id_end // 2)
        return [
            [rng.randrange(id_start, id_end) for _ in range(self.input_len)]
            for _ in range(self.count)
        ]


WORKLOADS = (
    Workload("decode", 1, 16, 64),
    Workload("prefill-512", 1, 512, 1),
    Workload("prefill-1024", 1, 1024, 1),
    Workload("prefill-2048", 1, 2048, 1),
    Workload("batch-32", 32, 128, 64),
    Workload("batch-64", 64, 128, 64),
    Workload("prefill-4096", 1, 4096, 1, is_usual=False),
    Workload("streams-32", 32, 16, 32, is_usual=False),
    Workload("decode-at-1k", 1, 1024, 65, is_after=True, is_usual=False),
    Workload("decode-at-32k", 1, 32768, 65, is_after=True, is_usual=False),
)
_WARM_UP = Workload("warm-up", 2, 32, 4)


def main() -> int:
    """Runs the comparison. 1 if Quire itself failed."""
    args = _arguments()
    # A polite end still ends the children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": _machine(),
        "threads": args.threads,
        "id_end": _id_end(Path(args.model)),
        "rounds": args.rounds,
        "bandwidth": [],
        "peers": {},
    }
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as logs:
        try:
            for spec in _specs(args):
                _start(spec, Path(logs), args.timeout, peers, results)
            if peers:
                _run_rounds(peers, _chosen(args.workloads), args, results)
        finally:
            for peer in peers:
                peer.close()
    print(table(results))
    return 0 if any(name.startswith("quire") for name in _alive(results)) else 1


def _start(
    spec: PeerSpec, logs: Path, timeout_s: float, peers: list[Peer], results: dict[str, Any]
) -> None:
    row: dict[str, Any] = {
        "engine": spec.engine, "options": spec.options, "environment": spec.environment,
        "weight_bytes": weight_bytes(Path(spec.checkpoint), spec.options), "values": {},
        "shares": [],
    }  # fmt: skip
    results["peers"][spec.name] = row
    try:
        peer = Peer(spec, logs / f"{spec.name}.log", timeout_s)
        peer.ask(_WARM_UP.prompts(0, results["id_end"]), _WARM_UP.output_len)
    except PeerError as error:
        row["error"] = str(error)
        print(f"{spec.name}: {error}", file=sys.stderr)
        return
    row |= {"start_s": peer.start_s, "version": peer.version}
    print(f"{spec.name} {peer.version}: first token {peer.start_s:.1f} s after start", flush=True)
    peers.append(peer)


def _run_rounds(
    peers: list[Peer], workloads: list[Workload], args: argparse.Namespace, results: dict[str, Any]
) -> None:
    skipped = {name: text.split(",") for name, text in named_values(args.skip, "--skip").items()}
    for number in range(args.rounds):
        probe = read_bandwidth(args.threads)
        results["bandwidth"].append(asdict(probe))
        print(
            f"round {number + 1} of {args.rounds}; memory reads {probe.sustained / 1e9:.1f} GB/s, "
            f"{probe.best / 1e9:.1f} in the best moment"
        )
        for workload in workloads:
            # Rotate the order, so that no engine always runs on a warm machine.
            turn = peers[number % len(peers) :] + peers[: number % len(peers)]
            shown = []
            for peer in turn:
                row = results["peers"][peer.spec.name]
                if "error" in row or workload.name in skipped.get(peer.spec.name, ()):
                    continue
                if (value := _measure(peer, workload, number, args, results)) is not None:
                    shown.append(f"{peer.spec.name} {value:.1f}")
            print(f"  {workload.name}: {', '.join(shown)} tokens/s", flush=True)
        _conclude(peers, args, results)


def _measure(
    peer: Peer, workload: Workload, number: int, args: argparse.Namespace, results: dict[str, Any]
) -> float | None:
    """Tokens per second of one engine in one round; None if it failed."""
    row = results["peers"][peer.spec.name]
    # On a shared machine memory's speed changes within seconds: each engine has probes of its own.
    probes = [read_bandwidth(args.threads, 0.4)] if workload.reads_memory else []
    try:
        prompts = workload.prompts(number, results["id_end"])
        seconds = peer.ask(prompts, workload.output_len)
        if workload.is_after:
            seconds -= peer.ask(prompts, 1)
    except PeerError as error:
        row["error"] = str(error)
        print(error, file=sys.stderr)
        return None
    value = workload.value(seconds)
    row["values"].setdefault(workload.name, []).append(value)
    if probes:
        probes.append(read_bandwidth(args.threads, 0.4))
        ceiling = statistics.mean(probe.sustained for probe in probes)
        row["shares"].append(value * row["weight_bytes"] / ceiling)
    return value


def _conclude(peers: list[Peer], args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Medians and memory so far, and the files: a run that is cut short leaves its rounds."""
    for peer in peers:
        results["peers"][peer.spec.name]["resident_bytes"] = peer.resident_bytes()
    for row in results["peers"].values():
        row["medians"] = {name: statistics.median(v) for name, v in row["values"].items()}
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    if args.svg:
        Path(args.svg).write_text(chart(results))


def _id_end(model: Path) -> int:
    """Token ids to draw from: ordinary ones, and none that the model lacks."""
    config = model / "config.json"
    known = json.loads(config.read_text()).get("vocab_size") if config.is_file() else None
    return min(7000, known or 7000)


def _alive(results: dict[str, Any]) -> list[str]:
    return [name for name, row in results["peers"].items() if "error" not in row]


def _chosen(names: str) -> list[Workload]:
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = names.split(",") if names else [one.name for one in WORKLOADS if one.is_usual]
    for name in wanted:
        if name not in known:
            raise SystemExit(f"--workloads {name!r} is not known; known are {', '.join(known)}")
    return [known[name] for name in wanted]


def _specs(args: argparse.Namespace) -> list[PeerSpec]:
    pythons = {} if args.no_quire else {"quire": sys.executable}
    pythons |= named_values(args.peer, "--peer")
    checkpoints = named_values(args.checkpoint, "--checkpoint")
    options, environments = named_values(args.option, "--option"), named_values(args.env, "--env")
    for name in {*checkpoints, *options, *environments} - set(pythons):
        raise SystemExit(f"{name!r} is no --peer; those are {', '.join(pythons)}")
    specs = []
    for name, python in pythons.items():
        environment = dict(e.split(":", 1) for e in environments.get(name, "").split(",") if e)
        engine = name.partition("-")[0]
        specs.append(
            PeerSpec(
                name=name,
                python=sys.executable if python == "python" else python,
                checkpoint=checkpoints.get(name, args.model),
                options={
                    **({"threads": args.threads} if engine in ("llamacpp", "ik") else {}),
                    **json.loads(options.get(name, "{}")),
                },
                environment={**usual_environment(engine, args.threads), **environment},
            )
        )
    return specs


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return {"processor": model, "cores": len(os.sched_getaffinity(0))}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory of every peer without its own")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="an engine to run")
    add("--checkpoint", action="append", default=[], metavar="NAME=PATH", help="a peer's own")
    add("--option", action="append", default=[], metavar="NAME=JSON", help="engine arguments")
    add("--env", action="append", default=[], metavar="NAME=KEY:VALUE,...", help="environment")
    add("--skip", action="append", default=[], metavar="NAME=WORKLOAD,...", help="not for this one")
    add("--no-quire", action="store_true", help="leave the plain `quire` out")
    add("--rounds", type=int, default=3, help="how often everything is measured (at least 3)")
    add("--workloads", default="", help="names with commas between; all by default")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads")
    add("--timeout", type=float, default=900, help="seconds for a start or a workload")
    add("--json", metavar="FILE", help="write everything measured")
    add("--svg", metavar="FILE", help="draw the medians")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
