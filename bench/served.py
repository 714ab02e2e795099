"""The cost of serving: the same work through `LLM.generate` and through servers, turn by turn.

    python bench/served.py --model DIR
        --server vllm="/venvs/vllm/bin/vllm serve {model} --port {port} --max-model-len 4096"
        --env vllm=VLLM_CPU_OMP_THREADS_BIND:0-1,VLLM_CPU_KVCACHE_SPACE:4

`quire serve` always takes part, and Quire's `LLM.generate` where the work is a fixed batch.
1, 8 and 32 streams of 128 tokens in and 64 out, all at once; then a steady mix: eight short
streams, replaced as they end, while long prompts arrive. Whoever waits is stopped. The client
shares the machine with the server, as light as it can be. Prints medians; writes JSON.

`vllm serve` reads its version from the metadata of an installed package: install the wheel with
pip. A wheel that was only unpacked has no metadata, and its server ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.command_line import named_values
from helpers.peer_process import Peer, PeerError, PeerSpec, ProcessGroup
from helpers.server_process import Server

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, run_load
from quire.bench.metrics import Samples, spread

INPUT_LEN, OUTPUT_LEN = 128, 64
STREAMS, MIX = "streams-", "mix"
WORKLOADS = f"{STREAMS}1,{STREAMS}8,{STREAMS}32,{MIX}"
GENERATE = "LLM.generate"


@dataclass(frozen=True)
class Mix:
    """Short streams without a pause, of lengths that differ as people's do (in lockstep they would
    all begin at once), and a long prompt every `period_s`."""

    streams: int = 8
    short_len: int = 64
    short_outputs: tuple[int, int] = (32, 96)
    long_len: int = 1024
    long_output: int = 8
    period_s: float = 3.0
    duration_s: float = 24.0


def main() -> int:
    """Runs everything and prints a table."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    id_end = min(7000, json.loads((Path(args.model) / "config.json").read_text())["vocab_size"])
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "runs": {}}
    with tempfile.TemporaryDirectory(prefix="served-") as logs:
        groups: list[ProcessGroup] = []
        try:
            offline, servers = _start(args, Path(logs), groups, results)
            for number in range(args.rounds):
                for work in args.workloads.split(","):
                    if work == MIX:
                        for name, server in servers.items():
                            _mix(name, server, Mix(), number, id_end, results)
                    else:
                        streams = int(work.removeprefix(STREAMS))
                        _batch(offline, servers, streams, number, id_end, results)
        except PeerError as error:
            sys.exit(f"served.py: {error}")
        finally:
            for group in groups:
                group.close()
    print(_table(results))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    return 0


def _start(
    args: argparse.Namespace, logs: Path, groups: list[ProcessGroup], results: dict[str, Any]
) -> tuple[Peer, dict[str, Server]]:
    quiet = {"QUIRE_LOG_LEVEL": "WARNING"}
    options = json.loads(args.options)
    spec = PeerSpec("quire", sys.executable, args.model, options, quiet)
    offline = Peer(spec, logs / "generate.log", args.timeout)
    groups.append(offline)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    peers = named_values(args.server, "--server")
    commands = {
        "quire": [
            sys.executable, "-m", "quire", "serve", "{model}", "--port", "{port}",
            "--max-model-len", "4096", "--no-enable-prefix-caching", "--no-speculation", *flags,
        ],
        **{name: shlex.split(command) for name, command in peers.items()},
    }  # fmt: skip
    environments = named_values(args.env, "--env")
    servers = {}
    for name, command in commands.items():
        words = [word.replace("{model}", args.model) for word in command]
        extra = dict(pair.split(":", 1) for pair in environments.get(name, "").split(",") if pair)
        server = Server(words, {**quiet, **extra}, logs / f"{name}.log", args.timeout)
        groups.append(server)
        servers[name] = server
        results.setdefault("start_s", {})[name] = server.start_s
        print(f"{name}: healthy {server.start_s:.1f} s after its start", flush=True)
    return offline, servers


def _batch(
    offline: Peer,
    servers: dict[str, Server],
    streams: int,
    number: int,
    id_end: int,
    results: dict[str, Any],
) -> None:
    """`streams` requests at once, through everybody; another one begins in each round."""
    rng = random.Random(f"{streams} {number}")
    prompts = [_ids(rng, INPUT_LEN, id_end) for _ in range(streams)]
    requests = [SampleRequest(ids, INPUT_LEN, OUTPUT_LEN) for ids in prompts]
    turn = [GENERATE, *servers]
    shown = []
    for name in turn[number % len(turn) :] + turn[: number % len(turn)]:
        if name == GENERATE:
            seconds = offline.ask(prompts, OUTPUT_LEN)
            values = {}
        else:
            found, seconds = servers[name].send(requests, [0.0] * streams)
            values = _spreads(found)
        values["output_tokens_per_s"] = streams * OUTPUT_LEN / seconds
        _book(results, f"{STREAMS}{streams}", name, values)
        shown.append(f"{name} {values['output_tokens_per_s']:.1f}")
    print(f"round {number + 1}, {streams} streams: {', '.join(shown)} tokens/s", flush=True)


def _mix(
    name: str, server: Server, mix: Mix, number: int, id_end: int, results: dict[str, Any]
) -> None:
    """Short streams all the time, long prompts now and then: what the short ones notice."""
    rng = random.Random(f"mix {number}")
    count = int(mix.duration_s / mix.period_s)
    longs = [
        SampleRequest(_ids(rng, mix.long_len, id_end), mix.long_len, mix.long_output)
        for _ in range(count)
    ]
    due = [mix.period_s * (1 + index) for index in range(count)]

    def short() -> SampleRequest:
        ids = _ids(rng, mix.short_len, id_end)
        return SampleRequest(ids, mix.short_len, rng.randint(*mix.short_outputs))

    server.resume()
    shorts, long_results = asyncio.run(_run_mix(server, mix, short, longs, due))
    server.pause()
    values = {f"short_{key}": value for key, value in _spreads(shorts).items()}
    values |= {f"long_{key}": value for key, value in _spreads(long_results).items()}
    values["output_tokens_per_s"] = sum(r.output_tokens for r in shorts) / mix.duration_s
    _book(results, MIX, name, values)
    print(
        f"round {number + 1}, mix, {name}: ITL median {values['short_median_itl_ms']:.0f} ms, "
        f"p99 {values['short_p99_itl_ms']:.0f} ms; TTFT of long prompts, median "
        f"{values['long_median_ttft_ms']:.0f} ms; {values['output_tokens_per_s']:.0f} tokens/s",
        flush=True,
    )


async def _run_mix(
    server: Server, mix: Mix, short: Any, longs: list[SampleRequest], due: list[float]
) -> tuple[list[RequestResult], list[RequestResult]]:
    client = Client(server.url)
    extra = {"ignore_eos": True, "temperature": 0}
    target = Target(client, "/v1/completions", server.model, extra)
    end = time.perf_counter() + mix.duration_s + mix.period_s

    async def stream() -> list[RequestResult]:
        found = []
        while time.perf_counter() < end:
            found += await run_load(target, [short()], [0.0], None, lambda _: None)
        return found

    streams = [asyncio.create_task(stream()) for _ in range(mix.streams)]
    long_results = await run_load(target, longs, due, None, lambda _: None)
    shorts = [result for found in await asyncio.gather(*streams) for result in found]
    await client.close()
    for result in [*shorts, *long_results]:
        if not result.is_success:
            raise PeerError(f"{server.url}: {result.error}")
    return shorts, long_results


def _spreads(results: list[RequestResult]) -> dict[str, float]:
    samples = Samples.of(results)
    return spread("ttft", samples.ttft, [99]) | spread("itl", samples.itl, [99])


def _book(results: dict[str, Any], work: str, name: str, values: dict[str, float]) -> None:
    run = results["runs"].setdefault(work, {}).setdefault(name, {})
    for key, value in values.items():
        run.setdefault(key, []).append(value)


def _ids(rng: random.Random, length: int, id_end: int) -> list[int]:
    return [rng.randrange(100, id_end) for _ in range(length)]


def _table(results: dict[str, Any]) -> str:
    lines = ["", "Medians of the rounds:"]
    for work, runs in results["runs"].items():
        for name, run in runs.items():
            medians = {key: statistics.median(values) for key, values in run.items()}
            text = f"{work:<12}{name:<14}{medians['output_tokens_per_s']:>9.1f} tokens/s"
            if GENERATE in runs and name != GENERATE:
                whole = statistics.median(runs[GENERATE]["output_tokens_per_s"])
                text += f" ({100 * medians['output_tokens_per_s'] / whole:.1f} % of {GENERATE})"
            prefix = "short_" if work == MIX else ""
            if f"{prefix}median_itl_ms" in medians:
                median, p99 = (medians[f"{prefix}{word}_itl_ms"] for word in ("median", "p99"))
                text += f", ITL median {median:.1f} p99 {p99:.1f} ms"
                text += f", TTFT median {medians[f'{prefix}median_ttft_ms']:.0f} ms"
            if work == MIX:
                text += f", of long prompts {medians['long_median_ttft_ms']:.0f} ms"
            lines.append(text)
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory")
    add("--server", action="append", default=[], metavar="NAME=COMMAND", help="a peer's server")
    add("--env", action="append", default=[], metavar="NAME=KEY:VALUE,...", help="environment")
    add("--options", default="{}", metavar="JSON", help="engine arguments of Quire")
    add("--workloads", default=WORKLOADS, metavar="NAME,...", help=f"default: {WORKLOADS}")
    add("--rounds", type=int, default=3, help="how often everything is measured")
    add("--timeout", type=float, default=600, help="seconds for a start")
    add("--json", metavar="FILE", help="write everything measured")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
