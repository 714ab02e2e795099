"""Measure the tiers of the KV store for a model: `quire kv bench MODEL`.

Reports for each tier how long writing and reading a chunk takes, and from how many tokens on
loading is faster than computing. Written chunks are removed afterwards. Files are read from the
page cache, as the files of recent prompts are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVStoreConfig
from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.kvstore.chunk_file import decode, encode, num_file_bytes
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import Tier, TierError
from quire.log.writer import say
from quire.units import MiB, format_bytes

_ROUNDS = 8
_NO_BOUND = 1 << 40
_TINY = ChunkShape(1, 1)
"""A chunk so small that reading it takes only the latency of the tier."""


@dataclass(frozen=True, slots=True)
class TierTimes:
    """Median times of a tier."""

    tier: str
    write_s: float
    """Seconds to write a chunk."""
    read_s: float
    """Seconds to read a chunk and verify its checksum."""
    ask_s: float
    """Seconds to read a chunk of one byte."""

    def break_even(self, tokens_of_chunk: float, token_s: float) -> int | None:
        """Number of tokens from which loading is faster than computing at `token_s` per token;
        None: never. `tokens_of_chunk`: tokens that one chunk read covers."""
        gain_s = token_s - max(0.0, self.read_s - self.ask_s) / tokens_of_chunk
        return None if gain_s <= 0 else max(1, round(self.ask_s / gain_s))


def bench_options(parser: Parser) -> None:
    add_engine_options(parser)
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def bench(args: argparse.Namespace) -> int:
    """Measure the tiers of the KV store for a model: `quire kv bench MODEL`.

    Reports for each tier how long writing and reading a chunk takes, and from how many tokens on
    loading is faster than computing. Written chunks are removed afterwards. Files are read from the
    page cache, as the files of recent prompts are.
    """
    from quire.planning.plan import build_engine_config

    given = engine_args(args)
    config = build_engine_config(given)
    store, cache = config.kv_store, config.cache
    if store is None:
        raise ConfigError("this engine has no KV store (see quire explain); give --kv-store")
    token_s = _seconds_per_token(given, config)
    shape, tokens = ChunkShape(store.chunk_blocks, cache.block_bytes), store.chunk_blocks
    tokens *= cache.block_size
    found = []
    for name, opened in _tiers(store):
        with opened as tier:
            found.append(_measure(name, tier, shape))
    per_chunk = tokens / len(cache.layout.groups)
    wins = [one.break_even(per_chunk, token_s) for one in found]
    if args.json:
        record = [
            {**asdict(one), "break_even": least} for one, least in zip(found, wins, strict=True)
        ]
        say(json.dumps({"seconds_per_token": token_s, "tiers": record}, indent=2))
        return 0
    size = num_file_bytes(shape)
    say(f"computing: {1 / token_s:,.0f} tokens/s; a chunk: {tokens} tokens, {format_bytes(size)}")
    say(f"{'tier':<8}{'write':>12}{'read':>12}{'ask':>10}   loading wins")
    for one, least in zip(found, wins, strict=True):
        wins_from = "never" if least is None else f"from {least:,} tokens on"
        write, read = (f"{format_bytes(size / s)}/s" for s in (one.write_s, one.read_s))
        say(f"{one.tier:<8}{write:>12}{read:>12}{1000 * one.ask_s:>7.2f} ms   {wins_from}")
    return 0


def _seconds_per_token(given: EngineArgs, config: EngineConfig) -> float:
    from quire.llm import LLM
    from quire.params import SamplingParams

    off: dict[str, Any] = {
        "kv_store": False, "kv_store_path": None, "kv_store_size": None, "kv_store_memory": 0,
        "kv_store_url": None, "kv_store_ttl": None, "kv_transfer_config": None,
        "kv_offloading_size": None, "swap_space": None, "enable_prefix_caching": False,
    }  # fmt: skip
    length = min(512, config.model.max_model_len - 1)
    prompt: Any = {"prompt_token_ids": [index % config.model.vocab_size for index in range(length)]}
    with closing(LLM.from_engine_args(replace(given, **off))) as llm:
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
            seconds.append(time.perf_counter() - began)
    return min(seconds) / length


def _tiers(store: KVStoreConfig) -> Iterator[tuple[str, AbstractContextManager[Tier]]]:
    if store.memory_bytes:
        from quire.kvstore.tiers.memory import MemoryTier

        yield "memory", closing(MemoryTier(_NO_BOUND))
    if store.disk_path is not None:
        yield "disk", _beside(store.disk_path)
    for url in store.remotes:
        from quire.kvstore.tiers.registry import open_tier, scheme_of

        yield scheme_of(url), closing(open_tier(url, 60.0))


@contextmanager
def _beside(path: Path) -> Iterator[Tier]:
    """A temporary disk tier on the same file system, without the existing files."""
    from quire.kvstore.tiers.disk import DiskTier

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kv-bench-", dir=path.parent) as directory,
        closing(DiskTier(Path(directory), _NO_BOUND)) as tier,
    ):
        yield tier


def _measure(name: str, tier: Tier, shape: ChunkShape) -> TierTimes:
    namespace = os.urandom(32)
    try:
        write_s, read_s = _times(tier, namespace, shape)
        return TierTimes(name, write_s, read_s, _times(tier, namespace, _TINY)[1])
    except TierError as error:
        raise ConfigError(f"the tier {name}: {error}") from None


def _times(tier: Tier, namespace: bytes, shape: ChunkShape) -> tuple[float, float]:
    piece = os.urandom(min(MiB, shape.num_bytes))
    data = (piece * (shape.num_bytes // len(piece) + 1))[: shape.num_bytes]
    writes, reads = [], []
    for _ in range(_ROUNDS):
        key = ChunkKey(namespace, os.urandom(32), 0)
        began = time.perf_counter()
        tier.write(key, encode(key, shape, data))
        written = time.perf_counter()
        found = tier.read(key, num_file_bytes(shape))
        if found is None:
            raise TierError("the chunk that was written cannot be read back")
        decode(found, key, shape)
        reads.append(time.perf_counter() - written)
        writes.append(written - began)
        tier.delete(key)
    return statistics.median(writes), statistics.median(reads)
