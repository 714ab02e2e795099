"""Compares structured output with vLLM's: the same model, prompts and JSON schemas, turn by turn.

    python bench/structured.py --model DIR --vllm-python /venvs/vllm/bin/python

Quire, and vLLM with each of `--backends`, are loaded once, each in a process of its own; an idle
one is stopped. Every round asks all of them, and another one begins in each:

- streams-N: N requests at once, whose texts keep to a schema without an end: tokens per second.
- first-SCHEMA: the seconds to the first token of one request, whose schema is new
  before; `first-none` is the same without a schema, and `begin` the first one of an engine.

Prints medians, and Quire's advantage; writes JSON. The model needs an end-of-sequence token.
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
from pathlib import Path
from typing import Any

from helpers.peer_process import Peer, PeerError, PeerSpec

_PROMPT_LEN = 64
_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["admin", "editor", "reader"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 20}, "zip": {"type": "integer"}},
            "required": ["town", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "role", "tags", "address"],
    "additionalProperties": False,
}  # fmt: skip
ENDLESS: dict[str, Any] = {"type": "array", "items": _ITEM, "minItems": 1000}
"""Schema of a long array, so that no output ends early."""
_SIZES = {"small": 1, "large": 40}
"""Number of objects of a schema, by its name."""


def unseen(name: str, objects: int) -> dict[str, Any]:
    """Return a schema with unique property names."""
    properties = {f"{name}_{number}": _ITEM for number in range(objects)}
    return {
        "type": "object", "properties": properties, "required": [*properties],
        "additionalProperties": False,
    }  # fmt: skip


def main() -> int:
    """Runs the comparison. 1 if an engine failed."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "peers": {}}
    id_end = min(7000, json.loads((Path(args.model) / "config.json").read_text())["vocab_size"])
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory(prefix="structured-") as logs:
        try:
            for spec in _specs(args):
                peers.append(_start(spec, Path(logs), args.timeout, id_end, results))
            for number in range(args.rounds):
                _round(peers, number, id_end, args, results)
        except PeerError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            for peer in peers:
                peer.close()
            if args.json:
                Path(args.json).write_text(json.dumps(results, indent=1))
    print(table(results))
    return 0


def _start(
    spec: PeerSpec, logs: Path, timeout_s: float, id_end: int, results: dict[str, Any]
) -> Peer:
    peer = Peer(spec, logs / f"{spec.name}.log", timeout_s)
    begin, _ = peer.ask_json(_prompts("begin", 1, id_end), [unseen("begin", 1)], 1)
    row = {"version": peer.version, "options": spec.options, "values": {"begin": [begin]}}
    results["peers"][spec.name] = row
    peer.ask_json(_prompts("warm-up", 2, id_end), [ENDLESS] * 2, 8)
    print(
        f"{spec.name} {peer.version}: first token {peer.start_s:.1f} s after start, the first one "
        f"with a schema {begin:.2f} s after that was asked for",
        flush=True,
    )
    return peer


def _round(
    peers: list[Peer], number: int, id_end: int, args: argparse.Namespace, results: dict[str, Any]
) -> None:
    for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
        values = results["peers"][peer.spec.name]["values"]

        def note(work: str, value: float, values: dict[str, list[float]] = values) -> None:
            values.setdefault(work, []).append(value)

        note("first-none", peer.ask(_prompts(f"none {number}", 1, id_end), 1))
        for size, objects in _SIZES.items():
            prompts = _prompts(f"{size} {number}", 1, id_end)
            seconds, _ = peer.ask_json(prompts, [unseen(f"{size}_{number}", objects)], 1)
            note(f"first-{size}", seconds)
        for streams in args.streams:
            prompts = _prompts(f"{streams} {number}", streams, id_end)
            seconds, tokens = peer.ask_json(prompts, [ENDLESS] * streams, args.output_len)
            note(f"streams-{streams}", tokens / seconds)
        shown = ", ".join(f"{work} {found[-1]:.3g}" for work, found in values.items())
        print(f"round {number + 1} of {args.rounds}, {peer.spec.name}: {shown}", flush=True)


def table(results: dict[str, Any]) -> str:
    """Medians: tokens per second, or seconds; each followed by Quire's advantage."""
    rows = {
        name: {work: statistics.median(found) for work, found in row["values"].items()}
        for name, row in results["peers"].items()
    }
    works = list(rows["quire"])
    lines = [f"{'':<16}" + "".join(f"{work:>20}" for work in works)]
    for name, medians in rows.items():
        cells = []
        for work in works:
            own, value = rows["quire"][work], medians[work]
            times = own / value if work.startswith("streams") else value / own
            cells.append(f"{value:>12.3f} ({times:4.2f}x)")
        lines.append(f"{name:<16}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _prompts(seed: str, count: int, id_end: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(100, id_end) for _ in range(_PROMPT_LEN)] for _ in range(count)]


def _specs(args: argparse.Namespace) -> list[PeerSpec]:
    length = {"max_model_len": _PROMPT_LEN + max(args.output_len, 64)}
    quiet = {"QUIRE_LOG_LEVEL": "WARNING"}
    specs = [PeerSpec("quire", sys.executable, args.model, length | json.loads(args.option), quiet)]
    environment = {
        "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}",
    }  # fmt: skip
    for backend in args.backends.split(",") if args.vllm_python else ():
        options = {**length, "structured_outputs_config": {"backend": backend}}
        specs.append(
            PeerSpec(f"vllm-{backend}", args.vllm_python, args.model, options, environment)
        )
    return specs


def _streams(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory, with a tokenizer")
    add("--vllm-python", metavar="PYTHON", help="of vLLM's virtual environment; none: Quire alone")
    add("--backends", default="xgrammar,guidance", help="of vLLM, with commas between")
    add("--streams", type=_streams, default=[1, 16], metavar="N,...", help="default: 1,16")
    add("--output-len", type=int, default=96, help="tokens of each text")
    add("--rounds", type=int, default=3, help="how often everything is measured")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="vLLM's compute threads")
    add("--option", default="{}", metavar="JSON", help="engine arguments of Quire")
    add("--timeout", type=float, default=900, help="seconds for a start or a workload")
    add("--json", metavar="FILE", help="write everything measured")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
