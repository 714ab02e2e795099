"""An engine that is dropped, forgotten at the end of the process or forked, and never closed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from quire.config.engine_args import EngineArgs
from quire.frontend.offline.llm_engine import LLMEngine
from quire.frontend.online.async_llm import AsyncLLMEngine
from quire.llm import LLM
from quire.params import SamplingParams

SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
PROMPT = list(range(40))
CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
Use = Literal["never", "idle", "mid-stream"]
STORES: dict[str, dict[str, Any]] = {
    "disk": {"kv_store": True},
    "memory": {"kv_store": True, "kv_store_size": 0, "kv_store_memory": 1 << 20},
    "off": {"kv_store": False},
}
WAIT_S = 20.0
_M_ARENA_MAX = -8


@pytest.fixture(scope="module", autouse=True)
def one_arena() -> None:
    """The allocator gives threads pools of their own, which keep tens of MB for later."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def use_llm(options: dict[str, Any], use: Use) -> object:
    llm = LLM(**options)
    if use != "never":
        llm.enqueue([PROMPT], LONG if use == "mid-stream" else SHORT, use_tqdm=False)
        llm.chat(CHAT, SHORT, use_tqdm=False)
    return weakref.ref(llm.llm_engine)


def use_engine(options: dict[str, Any], use: Use) -> object:
    engine = LLMEngine.from_engine_args(EngineArgs(**options))
    if use != "never":
        engine.add_request("1", PROMPT, LONG if use == "mid-stream" else SHORT)
        engine.step()
        while use == "idle" and engine.has_unfinished_requests():
            engine.step()
    return weakref.ref(engine)


def use_async(options: dict[str, Any], use: Use, mode: Literal["thread", "process"]) -> object:
    async def serve() -> object:
        engine = AsyncLLMEngine.from_engine_args(EngineArgs(**options), engine_mode=mode)
        if use != "never":
            params = LONG if use == "mid-stream" else SHORT
            async for _ in await engine.add_request("1", PROMPT, params):
                if use == "mid-stream":
                    break
        return weakref.ref(engine)

    return asyncio.run(serve())


KINDS: dict[str, Callable[[dict[str, Any], Use], object]] = {
    "LLM": use_llm,
    "LLMEngine": use_engine,
    "thread": lambda options, use: use_async(options, use, "thread"),
    "process": lambda options, use: use_async(options, use, "process"),
}


def resources() -> tuple[int, int]:
    """Threads, and open files."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def await_at_most(limits: tuple[int, int]) -> None:
    end = time.monotonic() + WAIT_S
    while any(now > limit for now, limit in zip(resources(), limits, strict=True)):
        assert time.monotonic() < end, (resources(), limits, threading.enumerate())
        time.sleep(0.01)


def resident_bytes() -> int:
    """Without what the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drop_engines(
    model_dir: Path, store_dir: Path, kind: str, use: Use, store: str, num: int
) -> int:
    """Bytes that the process has grown by, after the first few of so many engines."""
    options = {"model": str(model_dir), "backend": "reference", "max_model_len": 128}
    options |= {"chat_template": TEMPLATE, "disable_log_stats": True, **STORES[store]}
    if store == "disk":
        options["kv_store_path"] = str(store_dir)
    limits, before = (0, 0), 0
    for number in range(num):
        dropped: Any = KINDS[kind](options, use)
        if kind in ("LLM", "LLMEngine") or use != "mid-stream":
            assert dropped() is None, "it waits for the garbage collector"
        gc.collect()
        assert dropped() is None
        if number == 0:  # what all engines share is there now
            time.sleep(0.5)
            limits = resources()
        await_at_most(limits)
        if number == 5:
            before = resident_bytes()
    return resident_bytes() - before


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("kind", "use", "store"),
    [
        ("LLM", "mid-stream", "disk"),
        ("LLMEngine", "idle", "memory"),
        ("thread", "mid-stream", "disk"),
        ("thread", "never", "off"),
        ("process", "idle", "off"),
    ],
)
def test_a_dropped_engine_leaves_nothing(
    kind: str, use: Use, store: str, model_dir: Path, tmp_path: Path
) -> None:
    drop_engines(model_dir, tmp_path, kind, use, store, 2)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("use", ["never", "idle", "mid-stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_dropped_engines(
    kind: str, use: Use, store: str, model_dir: Path, tmp_path: Path
) -> None:
    assert drop_engines(model_dir, tmp_path, kind, use, store, 50) < 20e6


SCRIPT = """
import gc, os, sys
from quire import LLM, SamplingParams
llm = LLM({model!r}, backend="reference", max_model_len=128, kv_store=True, kv_store_path={store!r})
params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
llm.generate([list(range(40))], params, use_tqdm=False)
if "fork" in sys.argv:
    pid = os.fork()
    if not pid:
        del llm
        gc.collect()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["exit", "fork"])
def test_an_engine_at_the_end_of_its_process(how: str, model_dir: Path, tmp_path: Path) -> None:
    """What is queued for the store is written; a child, which has no threads, waits for none."""
    script = SCRIPT.format(model=str(model_dir), store=str(tmp_path))
    command = [sys.executable, "-c", script, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert any(path.is_file() for path in tmp_path.rglob("*") if "ledger" not in path.name)
