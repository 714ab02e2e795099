"""Print the facts about this machine and installation that a bug report needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from quire.cli.commands.doctor import cpuinfo, num_memory_nodes
from quire.cli.explain_rows import ranges
from quire.cli.gpu import gpu_facts
from quire.cli.terminal import quiet_log
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError, QuireError
from quire.log.writer import say
from quire.redacted_settings import environment
from quire.units import format_bytes
from quire.version import __version__

Facts = dict[str, str]

_LIBRARIES = (
    "numpy", "msgspec", "tokenizers", "jinja2", "cffi", "tqdm", "starlette", "uvicorn", "uvloop",
    "httptools", "prometheus-client", "pyzmq", "huggingface_hub", "pyyaml", "safetensors",
    "opentelemetry-sdk", "openai", "torch", "transformers", "vllm",
)  # fmt: skip
"""Quire's dependencies, and libraries that programs often use with it."""
_PREFIXES = (
    "QUIRE_", "VLLM_", "HF_", "OMP_", "MKL_", "OTEL_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD",
    "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK",
)  # fmt: skip


def collect() -> dict[str, Facts]:
    """All facts, by topic."""
    return {
        "system": dict(_system()),
        "processor": dict(_processor()),
        "memory": dict(_memory()),
        "quire": dict(_quire()),
        "GPU": gpu_facts(),
        "libraries": dict(_libraries()),
        "environment": environment(_PREFIXES),
    }


def _system() -> Iterator[tuple[str, str]]:
    with suppress(OSError, KeyError):
        yield "distribution", platform.freedesktop_os_release()["PRETTY_NAME"]
    yield "kernel", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "C library", " ".join(platform.libc_ver()).strip() or "unknown"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "executable", sys.executable
    container = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    yield "container", "yes" if container else "not found"


def _processor() -> Iterator[tuple[str, str]]:
    name, flags = cpuinfo()
    yield "model", name
    allowed = sorted(os.sched_getaffinity(0))
    yield (
        "logical cores",
        f"{os.cpu_count()}, {len(allowed)} for this process: {ranges(allowed, ',', '-')}",
    )
    from quire.backends.cpu.machine import cpu_report

    report = cpu_report()
    quota = "none" if report.quota_cpus is None else f"{report.quota_cpus:g} CPUs"
    yield "cgroup quota", quota
    yield "NUMA nodes", str(num_memory_nodes())
    yield "compute threads", str(report.num_threads)
    yield "tier", report.isa or f"none: {report.problem}"
    yield "tiers of this installation", ", ".join(report.built_isas) or "none"
    yield "tiers that this processor can run", ", ".join(report.runnable_isas) or "unknown"
    yield "flags", " ".join(sorted(flags))


def _memory() -> Iterator[tuple[str, str]]:
    from quire.planning.machine import available_memory

    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        for key, name in (("MemTotal", "total"), ("MemAvailable", "free"), ("SwapTotal", "swap")):
            yield name, format_bytes(sizes.get(key, 0))
    found = available_memory()
    yield "available here", f"{format_bytes(found.available_bytes)} ({found.source})"
    with suppress(OSError):
        path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
        yield "transparent huge pages", path.read_text(encoding="ascii").strip()


def _quire() -> Iterator[tuple[str, str]]:
    yield "version", __version__
    yield "directory", str(DEMO_MODEL_PATH.parent)
    from quire.backends.registry import choose_device, make_backend

    try:
        yield "backend", make_backend(choose_device("auto", None)).capabilities.description
    except (ConfigError, ImportError, OSError, QuireError) as error:
        yield "backend", f"none: {error}"


def _libraries() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print the facts."""
    quiet_log()
    facts = collect()
    if args.json:
        say(json.dumps(facts, indent=2))
        return 0
    for topic, rows in facts.items():
        say(topic)
        for name, value in rows.items():
            say(f"  {name:<24} {value}")
        say()
    return 0
