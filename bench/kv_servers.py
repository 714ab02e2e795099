"""The KV store between servers: what a second one finds, and prompts that one server computes and
another one goes on with.

    python bench/kv_servers.py --model DIR [--prompts 5 --prompt-tokens 2000] [--window-s 20]
                               [--pool-blocks 512 | 0]

On one directory, and on one Redis (`redis-server` has to be installed): a prompt is asked of one
server and then of another; `second_*` is what that found and its TTFT by that of the first. Then
prompts go to a server that computes them and to one that goes on with them (`apart_*`), in turns
with one server alone: TTFT of both by TTFT of one.

ITL: one processor core for the server that computes prompts, another one for the server that
generates. `itl_*`: ITL of streams on the latter, alone (`generating`), while long prompts go
through both (`apart`), and while a server that has nothing to do with it computes such prompts on
the other core (`together`), which shows what two cores of one machine cost each other; and of one
server on both cores that computes and generates, with the same prompts (`one`). A long prompt is
answered with one token: with more of them each step reads its K/V, wherever that was computed. Of
all rounds together: median, p99, and the share of ITL that is longer than p99 of `generating`, 0.01
there. The server that generates has --pool-blocks KV blocks, and a round before those that count
has written to all of them: a server that has run for a while takes no new memory of the system.
--pool-blocks 0: as many as there is room for, and no such round.

Servers that wait are stopped. Before anything is measured, those that take part have --rest-ms in
which no request runs. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from helpers.kv_engines import arguments, measure_all
from helpers.server_process import Server

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, send_one
from quire.bench.metrics import Samples, spread

COMPUTES = (
    "--kv-transfer-config", '{"kv_role": "kv_producer"}',
    "--max-num-batched-tokens", "256",  # the beginning is stored while the rest is computed
)  # fmt: skip
GENERATES = ("--kv-transfer-config", '{"kv_role": "kv_consumer"}')
STREAMS, STREAM_LEN, STREAM_OUTPUTS = 4, 64, 256


class Prompts:
    """New ones, and the requests for them."""

    def __init__(self, args: argparse.Namespace) -> None:
        config = json.loads((Path(args.model) / "config.json").read_text())
        self.random = random.Random(args.seed)
        self.vocab_size = int(config["vocab_size"])
        self.length = args.prompt_tokens

    def new(self, length: int = 0, output_len: int = 4) -> SampleRequest:
        """Return a prompt with `length` tokens, by default `args.prompt_tokens`."""
        length = length or self.length
        ids = [self.random.randrange(3, self.vocab_size) for _ in range(length)]
        return SampleRequest(ids, length, output_len)


class Servers:
    """Starts servers of one model."""

    def __init__(self, args: argparse.Namespace, stack: ExitStack, logs: Path) -> None:
        self._args, self._stack, self._logs = args, stack, logs
        self._count = 0

    def start(self, *options: str, core: int | None = None) -> Server:
        """With these options. `core`: the only one it may run on."""
        words = [] if core is None else ["taskset", "-c", str(core)]
        words += [sys.executable, "-m", "quire", "serve", self._args.model, "--port", "{port}"]
        words += ["--max-model-len", str(self._args.max_model_len), "--no-speculation", *options]
        self._count += 1
        server = Server(words, {}, self._logs / f"{self._count}.log", 120)
        self._stack.callback(server.close)
        return server


async def ask(server: Server, request: SampleRequest, **more: Any) -> RequestResult:
    """One request, streamed to its end. Raises RuntimeError."""
    client = Client(server.url)
    extra = {"ignore_eos": True, "temperature": 0, **more}
    target = Target(client, "/v1/completions", server.model, extra)
    result = await send_one(target, request, f"{time.monotonic_ns()}")
    await client.close()
    if not result.is_success:
        raise RuntimeError(f"{server.url}: {result.error}")
    return result


async def ask_apart(computes: Server, generates: Server, request: SampleRequest) -> RequestResult:
    """First to one server, then to the other with what that gave. TTFT is of both."""
    client, begin = Client(computes.url), time.perf_counter()
    body = {
        "model": computes.model, "prompt": request.prompt, "max_tokens": 1, "temperature": 0,
        "kv_transfer_params": {"do_remote_decode": True},
    }  # fmt: skip
    response = await client.send("POST", "/v1/completions", json.dumps(body).encode(), {})
    handed = json.loads(await client.body(response))["kv_transfer_params"]
    await client.close()
    result = await ask(generates, request, kv_transfer_params=handed)
    result.ttft += result.start_time - begin
    return result


@contextmanager
def running(*servers: Server, rest_s: float = 0.0) -> Iterator[None]:
    """Lets these go on meanwhile, after a rest."""
    for server in servers:
        server.resume()
    time.sleep(rest_s)
    try:
        yield
    finally:
        for server in servers:
            server.pause()


def shared(
    servers: Servers, prompts: Prompts, args: argparse.Namespace, place: Sequence[str]
) -> dict[str, Any]:
    """Tokens that a second server finds, and the cost of computing a prompt in another server."""
    rest_s = args.rest_ms / 1000
    computes = servers.start(*place, *COMPUTES)
    generates = servers.start(*place, *GENERATES)
    alone = servers.start("--no-kv-store")
    everyone = (alone, computes, generates)
    with running(*everyone):  # they learn what computing takes
        for server in everyone:
            asyncio.run(ask(server, prompts.new(512)))
    found: dict[str, list[float]] = {}

    def note(name: str, result: RequestResult) -> None:
        found.setdefault(f"ttft_{name}_s", []).append(result.ttft)
        found.setdefault(f"cached_{name}", []).append(result.cached_tokens / result.prompt_len)

    texts = []
    for _ in range(args.prompts):
        request = prompts.new()
        with running(alone, rest_s=rest_s):
            texts.append(asyncio.run(ask(alone, request)))
            note("alone", texts[-1])
        with running(computes, generates, rest_s=rest_s):
            apart = asyncio.run(ask_apart(computes, generates, request))
            note("apart", apart)
            texts[-1].error = "" if apart.text == texts[-1].text else "differs"
        request = prompts.new()
        with running(computes, rest_s=rest_s):
            note("first", asyncio.run(ask(computes, request)))
            time.sleep(0.5)
        with running(generates, rest_s=rest_s):
            note("second", asyncio.run(ask(generates, request)))
    for server in everyone:
        server.close()
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {
        **medians,
        "apart_by_alone": medians["ttft_apart_s"] / medians["ttft_alone_s"],
        "first_by_second": medians["ttft_first_s"] / medians["ttft_second_s"],
        "outputs_are_equal": not any(result.error for result in texts),
    }


async def _streams(server: Server, prompts: Prompts, end: float) -> list[RequestResult]:
    async def stream() -> list[RequestResult]:
        found = []
        while time.perf_counter() < end:
            found.append(await ask(server, prompts.new(STREAM_LEN, STREAM_OUTPUTS)))
        return found

    return [
        one for some in await asyncio.gather(*(stream() for _ in range(STREAMS))) for one in some
    ]


async def window(
    server: Server,
    prompts: Prompts,
    seconds: float,
    send_long: Callable[[SampleRequest], Awaitable[RequestResult]] | None,
) -> tuple[list[float], list[float]]:
    """ITL of streams on a server, and TTFT of long prompts, one after the other."""
    end = time.perf_counter() + seconds
    streams = asyncio.create_task(_streams(server, prompts, end))
    long_ttfts = []
    while send_long is not None and time.perf_counter() < end - 4:
        await asyncio.sleep(1)
        long_ttfts.append((await send_long(prompts.new(output_len=1))).ttft)
    return Samples.of(await streams).itl, long_ttfts


def itl(servers: Servers, prompts: Prompts, args: argparse.Namespace, path: str) -> dict[str, Any]:
    """ITL of streams with long prompts and without, apart and on one server."""
    place = ("--kv-store-path", path)
    computes = servers.start(*place, *COMPUTES, core=0)
    pool = ("--num-gpu-blocks-override", str(args.pool_blocks)) if args.pool_blocks else ()
    generates = servers.start(*place, *GENERATES, *pool, core=1)
    together = servers.start("--no-kv-store", *COMPUTES[-2:], core=0)
    alone = servers.start("--no-kv-store")
    found: dict[str, tuple[list[float], list[float]]] = {}

    def note(name: str, used: Sequence[Server], send_long: Any) -> None:
        with running(*used, rest_s=args.rest_ms / 1000):
            gaps, ttfts = asyncio.run(window(used[0], prompts, args.window_s, send_long))
        all_gaps, all_ttfts = found.setdefault(name, ([], []))
        all_gaps += gaps
        all_ttfts += ttfts

    def note_two() -> None:
        note("generating", [generates], None)
        note("apart", [generates, computes], lambda one: ask_apart(computes, generates, one))

    if args.pool_blocks:
        note_two()
        found.clear()
    for _ in range(args.rounds):
        note_two()
        note("together", [generates, together], lambda one: ask(together, one))
        note("one", [alone], lambda one: ask(alone, one))
    for server in (computes, generates, together, alone):
        server.close()
    return _spreads(found)


def _spreads(found: dict[str, tuple[list[float], list[float]]]) -> dict[str, Any]:
    """Return ITL and the TTFT of long prompts by name; p99 is relative to `generating`."""
    result: dict[str, Any] = {}
    quiet = spread("itl", found["generating"][0], [99])["p99_itl_ms"]
    for name, (gaps, ttfts) in found.items():
        spreads = spread("itl", gaps, [99])
        result[f"itl_{name}_median_itl_ms"] = spreads["median_itl_ms"]
        result[f"itl_{name}_p99_itl_ms"] = spreads["p99_itl_ms"]
        above = sum(1 for gap in gaps if 1000 * gap > quiet)
        result[f"itl_{name}_share_above_quiet_p99"] = above / len(gaps)
        result[f"itl_{name}_long_prompts"] = len(ttfts)
        if ttfts:
            result[f"itl_{name}_ttft_s"] = statistics.median(ttfts)
    for name in ("apart", "together"):
        result[f"itl_p99_{name}_by_quiet"] = result[f"itl_{name}_p99_itl_ms"] / quiet
    return result


@contextmanager
def redis_url(directory: Path) -> Iterator[str]:
    """A Redis server of its own. Raises SystemExit if there is none."""
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed; leave out the measure `redis`")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["redis-server", "--port", str(port), "--save", "", "--dir", str(directory)]
    words += ["--maxmemory", "6gb", "--maxmemory-policy", "allkeys-lru"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One of the measures, in a directory of its own."""
    with tempfile.TemporaryDirectory(dir=args.directory) as path, ExitStack() as stack:
        servers, prompts = Servers(args, stack, Path(path)), Prompts(args)
        store = str(Path(path) / "kv")
        if name == "itl":
            return itl(servers, prompts, args, store)
        if name == "redis":
            url = stack.enter_context(redis_url(Path(path)))
            place = ["--kv-store-size", "0", "--kv-store-url", url]
            return shared(servers, prompts, args, place)
        return shared(servers, prompts, args, ["--kv-store-path", store])


def main(words: Sequence[str] | None = None) -> int:
    """Prints a table; the exit code is 1 if outputs differ."""
    numbers = {
        "prompts": 5,
        "prompt_tokens": 2000,
        "window_s": 20,
        "rounds": 2,
        "rest_ms": 2000,
        "pool_blocks": 512,
    }
    parser = arguments(__doc__, numbers)
    parser.add_argument("--measures", default="directory,redis,itl")
    args = parser.parse_args(words)
    return measure_all(args.measures.split(","), lambda name: measure(name, args), args.json)


if __name__ == "__main__":
    sys.exit(main())
