"""Many adapters on disk, few in memory: whether memory grows, and whether base requests notice.

    python bench/many_adapters.py MODEL [--adapters 500] [--kept 20] [--minutes 10] [--rank 8]

Writes random adapters into a temporary folder. Requests without an adapter run all the time, and as
many with one: in the first half of each minute one of four that stay in memory, in the second half
any of them, most of which must be loaded. Prints the 99th percentile of the time between two tokens
of base requests, with and without loads, and the memory and the threads of the process and its
children.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from adapters import write_adapter

from quire import SamplingParams
from quire.adapters import LoRARequest
from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import AsyncEngineArgs
from quire.config.model_lookup.hub import resolve_model
from quire.frontend.online.async_llm import AsyncLLM
from quire.params import RequestOutputKind

BASE_STREAMS, ADAPTER_STREAMS = 4, 4
TOKENS = 64


def params(seed: int) -> SamplingParams:
    """The sampling parameters of one request."""
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=TOKENS, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip


def held() -> tuple[int, int]:
    """The memory in MiB, and the threads, of this process and its children."""
    lists = [one.read_text() for one in Path("/proc/self/task").glob("*/children")]
    children = " ".join(lists).split()
    status = [Path(f"/proc/{pid}/status").read_text() for pid in ("self", *children)]
    kib = sum(int(one.split("VmRSS:")[1].split()[0]) for one in status)
    return kib >> 10, sum(int(one.split("Threads:")[1].split()[0]) for one in status)


class Load:
    """The requests of one run."""

    def __init__(self, engine: AsyncLLM, adapters: list[LoRARequest], end: float) -> None:
        self._engine, self._adapters, self._end = engine, adapters, end
        self._loads = asyncio.Event()
        self._number = 0
        self.gaps: dict[bool, list[float]] = defaultdict(list)
        """Seconds between two tokens of base requests, by whether adapters are loaded."""
        self.num_finished = 0

    async def run(self) -> None:
        """Until the end."""
        base = [self._base() for _ in range(BASE_STREAMS)]
        others = [self._with_adapters() for _ in range(ADAPTER_STREAMS)]
        for adapter in self._adapters[:ADAPTER_STREAMS]:
            await self._engine.add_lora(adapter)
            await self._engine.pin_lora(adapter.lora_int_id)
        await asyncio.gather(*base, *others, self._switch())

    async def _switch(self) -> None:
        begin = time.monotonic()
        while time.monotonic() < self._end:
            (self._loads.set if (time.monotonic() - begin) % 60 >= 30 else self._loads.clear)()
            await asyncio.sleep(0.5)

    async def _base(self) -> None:
        while time.monotonic() < self._end:
            last = None
            async for _ in self._request(None):
                now = time.monotonic()
                if last is not None:
                    self.gaps[self._loads.is_set()].append(now - last)
                last = now

    async def _with_adapters(self) -> None:
        while time.monotonic() < self._end:
            known = self._adapters if self._loads.is_set() else self._adapters[:ADAPTER_STREAMS]
            async for _ in self._request(random.choice(known)):
                pass

    def _request(self, adapter: LoRARequest | None):
        self._number += 1
        self.num_finished += adapter is not None and self._loads.is_set()
        prompt = [random.randrange(200) for _ in range(32)]
        return self._engine.generate(
            prompt, params(self._number), f"{self._number}", lora_request=adapter
        )


async def measure(args: argparse.Namespace, folder: Path) -> None:
    """Write the adapters, run the load, print what it cost."""
    config = read_config(resolve_model(args.model))
    for number in range(args.adapters):
        if not (folder / str(number)).exists():
            write_adapter(folder / str(number), config, args.rank, number)
    adapters = [
        LoRARequest(str(number), number + 1, str(folder / str(number)))
        for number in range(args.adapters)
    ]
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            args.model, enable_lora=True, max_lora_rank=args.rank, max_cpu_loras=args.kept,
            quantization=args.quantization, load_format=args.load_format, max_model_len=256,
            kv_store=False, speculation=False, skip_tokenizer_init=args.load_format == "dummy",
            num_gpu_blocks_override=128,  # so that memory does not grow with the KV cache
        )
    )  # fmt: skip
    load = Load(engine, adapters, time.monotonic() + 60 * args.minutes)
    sizes = [held()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(15)
            sizes.append(held())

    watching = asyncio.ensure_future(watch())
    await load.run()
    watching.cancel()
    loaded = await engine.list_loras()
    engine.shutdown()
    p99 = {key: float(np.percentile(gaps, 99)) for key, gaps in load.gaps.items() if gaps}
    print(
        json.dumps({
            "requests_with_adapters": load.num_finished, "adapters_in_memory": len(loaded),
            "p99_s": p99.get(False), "p99_with_loads_s": p99.get(True),
            "resident_mib": [size for size, _ in sizes],
            "threads": [count for _, count in sizes],
        })
    )  # fmt: skip


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("--adapters", type=int, default=500)
    parser.add_argument("--kept", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--load-format", default="auto", help="dummy: random weights")
    parser.add_argument("--folder", type=Path, help="of adapters that a further run uses again")
    args = parser.parse_args()
    if args.folder is not None:
        args.folder.mkdir(exist_ok=True)
        asyncio.run(measure(args, args.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(args, Path(folder)))


if __name__ == "__main__":
    main()
