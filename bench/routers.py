"""Routers in front of several servers: prompt tokens from the cache, and the time to the first
token.

    python bench/routers.py --python VENV/bin/python --model demo --servers 6 --blocks 640
        --policies vllm:round_robin,vllm:cache_aware,sglang:cache_aware --rounds 3 [--json FILE]

VENV has `vllm-router`, `sglang-router` or both. A policy is a router, its policy, and options of
its command line: `sglang:cache_aware:--balance-abs-threshold=8`. `one:` is a single server with
the room of all and no router. `direct:` sends each conversation to a server of its own choice.
`ray:` is an application of Ray Serve with --servers replicas of the demo model, which the Python of
--ray-python runs. `ray:CLASS` has no ingress: Ray Serve's request router CLASS chooses a replica,
for instance `ray:ray.serve.experimental.round_robin_router.RoundRobinRouter`.

All policies get the same conversations in turn, each round beginning with another one, from
openai's client. Caches are emptied before each. Policies that need the name of a session get it in
the headers `X-Session-ID` and `X-SMG-Routing-Key`. Prints medians, also of each round, and the
processor seconds of all servers, but not of Ray's replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from helpers.peer_process import PeerError, ProcessGroup
from helpers.server_process import Server

_SESSIONS = ("consistent_hash", "sticky_least_loaded", "manual")
_WORDS = ("the", "green", "river", "house", "of", "stone", "under", "light", "that", "many", "saw")


@dataclass(slots=True)
class Outcome:
    """A policy's requests, over all rounds."""

    first_s: list[list[float]] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def main() -> None:
    """Runs everything and prints a table."""
    args = _arguments()
    policies = args.policies.split(",")
    quiet = {"QUIRE_LOG_LEVEL": "WARNING", "VLLM_SERVER_DEV_MODE": "1"}
    outcomes = {policy: Outcome() for policy in policies}
    with tempfile.TemporaryDirectory() as folder:
        servers = list[Server]()

        def start(num_blocks: int) -> Server:
            command = [sys.executable, "-m", "quire", "serve", args.model, "--port", "{port}"]
            command += ["--num-threads", str(args.threads), "--no-kv-store", "--no-speculation"]
            command += ["--num-gpu-blocks-override", str(num_blocks)]
            command += ["--enable-prompt-tokens-details", *args.serve_options.split()]
            servers.append(
                Server(command, quiet, Path(folder, f"{len(servers)}.log"), args.timeout)
            )
            return servers[-1]

        try:
            several = [start(args.blocks) for _ in range(args.servers)]
            alone = [start(args.blocks * args.servers)] if "one:" in policies else []
            for number in range(args.rounds):
                seed = args.seed + number
                for policy in (
                    policies[number % len(policies) :] + policies[: number % len(policies)]
                ):
                    used = alone if policy == "one:" else several
                    _measure(policy, used, args, seed, Path(folder), outcomes[policy])
                    _print(policy, outcomes[policy])
        finally:
            for server in servers:
                server.close()
    print(f"\n{'policy':46} {'cached':>7} {'p50 ms':>8} {'p95 ms':>8} {'cpu s':>7}   p50 by round")
    for policy, outcome in outcomes.items():
        _print(policy, outcome)
    if args.json:
        record = {
            policy: {"first_s": one.first_s, "hits": one.hits, "cpu_s": one.cpu_s}
            for policy, one in outcomes.items()
        }
        Path(args.json).write_text(json.dumps(record, indent=1) + "\n")


def _print(policy: str, outcome: Outcome) -> None:
    every = sorted(one for some in outcome.first_s for one in some)
    each = [round(1e3 * statistics.median(some)) for some in outcome.first_s]
    print(
        f"{policy:46} {statistics.mean(outcome.hits):7.1%} {1e3 * statistics.median(every):8.0f} "
        f"{1e3 * every[int(0.95 * len(every))]:8.0f} "
        f"{statistics.mean(outcome.cpu_s):7.1f}   {each}",
        flush=True,
    )


def _measure(
    policy: str, servers: list[Server], args: Any, seed: int, folder: Path, outcome: Outcome
) -> None:
    for server in servers:
        server.resume()
        request = urllib.request.Request(f"{server.url}/reset_prefix_cache", method="POST")
        urllib.request.urlopen(request, timeout=args.timeout).close()
    router, urls = None, [server.url for server in servers]
    name, _, rest = policy.partition(":")
    chosen, *options = rest.split(":")
    try:
        if name in ("vllm", "sglang"):
            router, urls = _router(name, chosen, options, urls, args, folder)
        elif name == "ray":
            router, urls = _ray(chosen, args, folder)
        before = sum(_cpu_s(server.pid) for server in servers)
        first_s, found, asked = asyncio.run(_Load(args, seed, urls, chosen in _SESSIONS).run())
        outcome.cpu_s.append(sum(_cpu_s(server.pid) for server in servers) - before)
        outcome.first_s.append(first_s)
        outcome.hits.append(found / asked)
    finally:
        if router is not None:
            router.close()
        for server in servers:
            server.pause()


def _router(
    name: str, policy: str, options: list[str], urls: list[str], args: Any, folder: Path
) -> tuple[ProcessGroup, list[str]]:
    module = {"vllm": "vllm_router.launch_router", "sglang": "sglang_router.launch_router"}[name]
    port = 18000 + random.randrange(10_000)
    command = [args.python, "-m", module, "--port", str(port), "--prometheus-port", str(port + 1)]
    command += ["--policy", policy, *options, "--worker-startup-check-interval", "1"]
    router = ProcessGroup(
        [*command, "--worker-urls", *urls], {}, folder / "router.log", stdout=subprocess.DEVNULL
    )
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + args.timeout
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return router, [url]
        except OSError:
            if time.monotonic() > end:
                router.close()
                raise PeerError(f"{name} did not start: {router.last_words()}") from None
            time.sleep(0.2)


class _RayServe(ProcessGroup):
    """The process that has started Ray, which ends it in order."""

    def is_ready(self) -> bool:
        """Waits until the application answers, or until its process has ended."""
        assert self._process.stdout is not None
        return bool(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the application and Ray."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        super().close()


def _ray(router_class: str, args: Any, folder: Path) -> tuple[ProcessGroup, list[str]]:
    port = 18000 + random.randrange(10_000)
    options = {
        "num_threads": args.threads, "num_gpu_blocks_override": args.blocks,
        "speculation": False, "kv_store": False,
    }  # fmt: skip
    child = Path(__file__).parent / "helpers" / "ray_serve_child.py"
    command = [args.ray_python, str(child), str(port), str(args.servers), json.dumps(options)]
    process = _RayServe(
        command + [router_class] * bool(router_class), {}, folder / "ray.log",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    if not process.is_ready():
        process.close()
        raise PeerError(f"Ray Serve did not start: {process.last_words()}")
    return process, [f"http://127.0.0.1:{port}"]


class _Load:
    """Conversations of several turns, with system prompts that some share."""

    def __init__(self, args: Any, seed: int, urls: list[str], names_sessions: bool) -> None:
        self._args = args
        self._rng = random.Random(seed)
        limits: dict[str, Any] = {"api_key": "-", "max_retries": 0, "timeout": args.timeout}
        self._clients = [openai.AsyncOpenAI(base_url=f"{url}/v1", **limits) for url in urls]
        self._names_sessions = names_sessions
        self._first_s: list[float] = []
        self._found = self._asked = 0

    async def run(self) -> tuple[list[float], int, int]:
        """Seconds to each first token, and the prompt tokens: those from the cache, and all."""
        args, rng = self._args, self._rng
        systems = [self._text(args.system_words) for _ in range(args.systems)]
        made = [
            (f"{number}", systems[number % args.systems], random.Random(rng.random()))
            for number in range(args.conversations)
        ]
        rng.shuffle(made)
        if args.rate:
            tasks = []
            for one in made:
                tasks.append(asyncio.create_task(self._converse(*one)))
                await asyncio.sleep(rng.expovariate(args.rate))
            await asyncio.gather(*tasks)
        else:
            # The turns of the conversations that are going on come one after the other.
            going = asyncio.Semaphore(args.clients)

            async def one_of(one: tuple[str, str, random.Random]) -> None:
                async with going:
                    await self._converse(*one)

            await asyncio.gather(*map(one_of, made))
        await asyncio.gather(*(client.close() for client in self._clients))
        return self._first_s, self._found, self._asked

    def _text(self, num_words: int, rng: random.Random | None = None) -> str:
        rng = rng or self._rng
        return " ".join(f"{rng.choice(_WORDS)}{rng.randrange(100)}" for _ in range(num_words))

    async def _converse(self, name: str, system: str, rng: random.Random) -> None:
        args = self._args
        client = self._clients[int(name) % len(self._clients)]
        headers = {"X-Session-ID": name, "X-SMG-Routing-Key": name} if self._names_sessions else {}
        messages: list[Any] = [{"role": "system", "content": system}]
        for _ in range(args.turns):
            messages.append({"role": "user", "content": self._text(args.turn_words, rng)})
            began, text = time.perf_counter(), ""
            stream = await client.chat.completions.create(
                model=args.model, messages=messages, max_tokens=args.reply_tokens, temperature=0,
                stream=True, stream_options={"include_usage": True}, extra_headers=headers,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for event in stream:
                new = event.choices[0].delta.content if event.choices else None
                if new and not text:
                    self._first_s.append(time.perf_counter() - began)
                text += new or ""
                if event.usage is not None:
                    details = event.usage.prompt_tokens_details
                    self._found += (details and details.cached_tokens) or 0
                    self._asked += event.usage.prompt_tokens
            messages.append({"role": "assistant", "content": text})
            if args.pause:
                await asyncio.sleep(rng.expovariate(1 / args.pause))


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process and of those that it has started and that live."""
    found, ticks = [pid], 0
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
            words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="of the routers")
    parser.add_argument("--ray-python", default=sys.executable, help="with Quire and Ray")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--policies", default="one:,vllm:round_robin,vllm:cache_aware")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--blocks", type=int, default=640, help="of each server, 16 tokens each")
    parser.add_argument("--serve-options", default="", help="more options of each server")
    parser.add_argument("--conversations", type=int, default=72)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--systems", type=int, default=36, help="different system prompts")
    parser.add_argument("--system-words", type=int, default=60)
    parser.add_argument("--turn-words", type=int, default=15)
    parser.add_argument("--reply-tokens", type=int, default=16)
    parser.add_argument("--clients", type=int, default=12, help="conversations at once")
    parser.add_argument(
        "--rate", type=float, help="new conversations a second, instead of --clients"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds between turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
