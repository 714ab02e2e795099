"""The cost of several models in one server: throughput together, and the first token while another
model is loaded.

    python bench/several_models.py MODEL --counts 2,5 --options '{"max_model_len": 1024}'

Each served model has a copy of the files, so that no two share pages. First, each of 1, 2 and 5
models has the same number of streams without a pause, in turns that alternate: the sum of their
tokens per second is compared with that of one. Then the first model gets one request after the
other, while another model is loaded and unloaded all the time, and without that. Prints medians
and the memory of all processes, shared pages counted once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from helpers.server_process import Server

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, run_load, send_one
from quire.bench.metrics import spread
from quire.units import MiB

_EXTRA = {"ignore_eos": True, "temperature": 0}
_WARM_S = 2.0


def main() -> None:
    """Runs everything and prints the results."""
    args = _arguments()
    counts = [int(word) for word in args.counts.split(",")]
    with tempfile.TemporaryDirectory(prefix="several-", dir=args.directory) as directory:
        options = {"speculation": False, **json.loads(args.options)}
        catalog = _copies(Path(args.model), Path(directory), max(counts), options)
        command = [sys.executable, "-m", "quire", "serve", "--models", str(catalog)]
        command += ["--port", "{port}", "--model-memory-bytes", args.memory]
        quiet = {"QUIRE_LOG_LEVEL": "WARNING"}
        server = Server(command, quiet, Path(directory) / "server.log", args.timeout)
        try:
            server.resume()
            asyncio.run(_measure(server, counts, args))
        finally:
            server.close()


def _copies(model: Path, directory: Path, count: int, options: dict[str, Any]) -> Path:
    models = []
    for index in range(count):
        name = f"m{index}"
        if model.is_dir():
            place = Path(shutil.copytree(model, directory / name))
        else:
            place = Path(shutil.copy(model, directory / f"{name}{model.suffix}"))
        models.append({"model": str(place), "name": name, "options": options})
    catalog = directory / "models.json"
    catalog.write_text(json.dumps({"models": models}))
    return catalog


async def _measure(server: Server, counts: list[int], args: argparse.Namespace) -> None:
    client = Client(server.url)
    for index in range(max(counts)):
        await _command(client, "load", f"m{index}")
        print(f"m{index} loaded: {_resident_bytes(server) // MiB} MiB", flush=True)
    rates: dict[int, list[float]] = {count: [] for count in (1, *counts)}
    for number in range(args.rounds):
        for count in rates:
            rate, results = await _together(client, count, number, args)
            rates[count].append(rate)
            ttft = spread("ttft", [result.ttft for result in results], [99])
            print(
                f"round {number + 1}, {count} models: {rate:.1f} tokens/s, TTFT median "
                f"{ttft['median_ttft_ms']:.0f} p99 {ttft['p99_ttft_ms']:.0f} ms", flush=True,
            )  # fmt: skip
    alone = statistics.median(rates[1])
    for count in counts:
        rate = statistics.median(rates[count])
        print(f"{count} models: {rate:.1f} tokens/s, {rate / alone:.3f} of one model alone")
    calm, loading = list[float](), list[float]()
    for _ in range(args.rounds):
        calm += await _first_tokens(client, args, is_loading=False)
        loading += await _first_tokens(client, args, is_loading=True)
    values = [spread("ttft", times, [99]) for times in (calm, loading)]
    for name, times, found in zip(("calm", "loading"), (calm, loading), values, strict=True):
        print(
            f"first token, {name}: {len(times)} requests, median {found['median_ttft_ms']:.1f} ms, "
            f"p99 {found['p99_ttft_ms']:.1f} ms, max {1000 * max(times):.1f} ms"
        )
    times_as_long = values[1]["p99_ttft_ms"] / values[0]["p99_ttft_ms"]
    print(f"p99 while another model loads: {times_as_long:.2f} of p99 without")
    await client.close()


def _resident_bytes(server: Server) -> int:
    """Memory of the server and its engines, shared pages counted once (PSS)."""
    pids, index = [server.pid], 0
    while index < len(pids):
        for task in Path(f"/proc/{pids[index]}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
        index += 1
    kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            kib += int(line.split()[1]) if line.startswith("Pss:") else 0
    return 1024 * kib


async def _together(
    client: Client, count: int, number: int, args: argparse.Namespace
) -> tuple[float, list[RequestResult]]:
    """Tokens per second of `count` models with `args.streams` streams each."""
    begin = time.perf_counter() + _WARM_S
    end = begin + args.seconds

    async def stream(model: str, place: int) -> list[RequestResult]:
        rng = random.Random(f"{number} {model} {place}")
        target = Target(client, "/v1/completions", model, _EXTRA)
        found = []
        while time.perf_counter() < end:
            found += await run_load(target, [_request(rng, args)], [0.0], None, lambda _: None)
        return found

    streams = [
        stream(f"m{index}", place) for index in range(count) for place in range(args.streams)
    ]
    results = [result for found in await asyncio.gather(*streams) for result in found]
    failed = [result.error for result in results if not result.is_success]
    if failed:
        sys.exit(f"several_models.py: {len(failed)} requests failed: {failed[0]}")
    tokens = 0
    for result in results:
        at = result.start_time + result.ttft
        for gap in (0.0, *result.itl):
            at += gap
            tokens += begin <= at < end
    return tokens / args.seconds, results


async def _first_tokens(
    client: Client, args: argparse.Namespace, *, is_loading: bool
) -> list[float]:
    """Times to the first token of requests to m0, one after the other."""
    rng, found = random.Random(5), list[float]()
    target = Target(client, "/v1/completions", "m0", _EXTRA)
    other = asyncio.create_task(_load_again(client)) if is_loading else None
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        result = await send_one(target, _request(rng, args), "first")
        if not result.is_success:
            sys.exit(f"several_models.py: {result.error}")
        found.append(result.ttft)
    if other is not None:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    return found


async def _load_again(client: Client) -> None:
    while True:
        await _command(client, "unload", "m1")
        await _command(client, "load", "m1")


async def _command(client: Client, name: str, model: str) -> None:
    body = msgspec.json.encode({"model": model})
    response = await client.send("POST", f"/v1/models/{name}", body)
    text = await client.body(response)
    if response.status != 200:
        sys.exit(f"several_models.py: {name} {model}: {text.decode(errors='replace')}")


def _request(rng: random.Random, args: argparse.Namespace) -> SampleRequest:
    ids = [rng.randrange(100, args.id_end) for _ in range(args.input_len)]
    return SampleRequest(ids, args.input_len, args.output_len)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", help="directory of a checkpoint, or a GGUF file")
    add("--counts", default="2,5", metavar="N,...", help="numbers of models; default: 2,5")
    add("--options", default="{}", metavar="JSON", help="options of every engine")
    add("--memory", default="12GiB", help="--model-memory-bytes of the server")
    add("--streams", type=int, default=4, help="streams of each model")
    add("--seconds", type=float, default=10, help="seconds of each measurement")
    add("--rounds", type=int, default=3, help="how often everything is measured")
    add("--input-len", type=int, default=64)
    add("--output-len", type=int, default=64)
    add("--id-end", type=int, default=7000, help="end of the token ids of prompts")
    add("--timeout", type=float, default=300, help="seconds for the start")
    add("--directory", help="where the copies are written; default: the folder of temporary files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
