"""Check this machine and this installation: what works, what is missing, and how to install it.

The exit code is 0 if models can run, 1 if something essential is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quire import env
from quire.cli import gpu
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.config.command_line.parser import Parser
from quire.config.quantization import available
from quire.errors import BackendError, ConfigError, QuireError
from quire.log.writer import say
from quire.units import GiB, format_bytes
from quire.version import __version__

Level = Literal["good", "note", "bad"]

_NEEDED = ("numpy", "msgspec", "tokenizers", "jinja2", "cffi", "tqdm")
_SERVER = ("starlette", "uvicorn", "prometheus_client")
_NICE = {
    "uvloop": "a faster event loop for the server",
    "httptools": "a faster HTTP parser for the server",
    "zmq": "an engine in its own process",
    "huggingface_hub": "downloading models by hub id",
    "yaml": "reading --config files in YAML",
}
_DISTRIBUTIONS = {"prometheus_client": "prometheus-client", "zmq": "pyzmq", "yaml": "pyyaml"}
_FEATURES = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
_LITTLE_MEMORY = 2 * GiB


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    topic: str
    level: Level
    text: str
    remedy: str | None = None
    """Advice that solves the problem."""


def all_findings() -> Iterator[Finding]:
    """All findings, in order of topic."""
    yield from software()
    yield from processor()
    yield from compute()
    yield from memory()
    yield from sockets()
    yield from models()
    yield from server()


def software() -> Iterator[Finding]:
    """Python, the operating system, and the required libraries."""
    yield Finding(
        "software",
        "good",
        f"quire {__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()} on {platform.machine()}",
    )
    missing = [name for name in _NEEDED if not _has(name)]
    found = [f"{name} {_version(name)}" for name in _NEEDED if name not in missing]
    yield Finding("software", "good", ", ".join(found))
    for name in missing:
        yield Finding("software", "bad", f"{name} is not installed", _install(name))


def processor() -> Iterator[Finding]:
    """Cores, the cores that this process may use, and instruction sets."""
    name, flags = cpuinfo()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = None
    with suppress(ImportError):  # reported by `software`
        from quire.backends.cpu.machine import cgroup_quota_cpus

        quota = cgroup_quota_cpus()
    limits = f"{os.cpu_count()} logical cores, {usable} for this process"
    if quota is not None:
        limits += f", cgroup quota {quota:g} CPUs"
    yield Finding("processor", "good", f"{name}: {limits}")
    known = [feature for feature in _FEATURES if feature in flags]
    yield Finding("processor", "good", "instructions: " + (", ".join(known) or "baseline only"))
    try:
        forced = env.forced_threads()
    except ConfigError as error:
        yield Finding("processor", "bad", str(error), "unset QUIRE_THREADS")
        return
    if forced is not None:
        yield Finding("processor", "note", f"QUIRE_THREADS forces {forced} threads")


def compute() -> Iterator[Finding]:
    """The backend that would run a model on this machine."""
    if forced := env.forced_isa():
        yield Finding("compute", "note", f"QUIRE_ISA forces the tier {forced}")
    if forced := env.forced_backend():
        yield Finding("compute", "note", f"QUIRE_BACKEND forces the backend {forced}")
    from quire.backends.registry import choose_device, make_backend

    try:
        device = choose_device("cpu", None)
        found = make_backend(device).capabilities
        yield Finding("compute", "good", found.description)
        formats = {
            "dtype": found.dtypes,
            "quantization": available(found.weight_formats),
            "kv_cache_dtype": found.kv_cache_dtypes,
        }
        for name, values in formats.items():
            yield Finding("compute", "good", f"{name}: {', '.join(values)}")
    except ConfigError as error:
        yield Finding("compute", "bad", str(error), "unset it, or set it to a supported value")
    except (ImportError, OSError, QuireError) as error:
        yield Finding(
            "compute",
            "bad",
            f"the native library does not load ({error}); models run on the NumPy reference "
            "backend, far slower",
            "install a C++17 compiler (apt install g++) and reinstall Quire",
        )
    yield from _tiers()
    yield from _gpu()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    text = f"C++ compiler: {compiler or 'none'} (only needed to install from source)"
    yield Finding("compute", "good", text)


def _gpu() -> Iterator[Finding]:
    """The first GPU, where the packages for one are installed, or a driver is."""
    driver = gpu.driver_version()
    if not gpu.has_packages():
        if driver:
            text = f"a GPU is not used: {driver}, but cuda-core is not installed"
            yield Finding("compute", "note", text, gpu.INSTALL)
        return
    try:
        yield Finding("compute", "good", f"--device cuda: {gpu.gpu_summary()}")
    except BackendError as error:
        yield Finding("compute", "note", f"--device cuda does not work: {error}")
    kernels = gpu.kernels_summary()
    level: Level = "good" if kernels else "note"
    remedy = None if kernels else gpu.INSTALL
    yield Finding("compute", level, f"kernels for GPUs: {kernels or 'none'}", remedy)


def _tiers() -> Iterator[Finding]:
    """Which instruction-set tiers this installation has, and whether the best one is missing."""
    from quire.backends.cpu.library import REINSTALL, best_tier, built_tiers, runnable_tiers

    built = built_tiers()
    text = f"tiers of this installation: {', '.join(built) or 'none'}"
    try:
        runnable = runnable_tiers()
    except BackendError:  # `compute` reports it
        yield Finding("compute", "note", text)
        return
    text += f"; this processor can run {', '.join(runnable)}"
    wanted = best_tier(runnable)
    if wanted in built:
        yield Finding("compute", "good", text)
    else:
        yield Finding("compute", "note", f"{text}; {wanted} would be the fastest", REINSTALL)


def memory() -> Iterator[Finding]:
    """Available memory, within the limits of enclosing cgroups."""
    from quire.planning.machine import available_memory

    found = available_memory()
    text = f"{format_bytes(found.available_bytes)} available ({found.source})"
    if found.available_bytes < _LITTLE_MEMORY:
        yield Finding("memory", "note", text, "only small models fit; free some memory")
    else:
        yield Finding("memory", "good", text)
    locked = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if locked.is_file():
        yield Finding("memory", "good", f"transparent huge pages: {locked.read_text().strip()}")


def sockets() -> Iterator[Finding]:
    """Advice for machines with several sockets."""
    count = num_memory_nodes()
    if count == 1:
        yield Finding("sockets", "good", "one memory node: one process uses all cores")
        return
    yield Finding(
        "sockets",
        "note",
        f"{count} memory nodes: one process reads memory of the others too",
        f"--data-parallel-size {count} for many requests, or --tensor-parallel-size {count} for a "
        "short time between tokens; VLLM_CPU_OMP_THREADS_BIND keeps each process on its cores",
    )


def num_memory_nodes() -> int:
    """Number of parts of the machine with memory of their own (NUMA nodes)."""
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1


def models() -> Iterator[Finding]:
    """The bundled model, and the models in the hub cache."""
    bundled = DEMO_MODEL_PATH
    if (bundled / "config.json").is_file():
        yield Finding("models", "good", f"bundled demo model: {bundled}")
    else:
        yield Finding("models", "bad", "the bundled demo model is missing", "reinstall Quire")
    cache = env.hub_cache_dir()
    cached = sorted(p.name[8:].replace("--", "/") for p in cache.glob("models--*"))
    shown = ", ".join(cached[:8]) + (f" and {len(cached) - 8} more" if len(cached) > 8 else "")
    yield Finding("models", "good", f"hub cache {cache}: {shown or 'no models'}")
    if env.hub_is_offline():
        yield Finding("models", "note", "HF_HUB_OFFLINE is set: nothing is downloaded")


def server() -> Iterator[Finding]:
    """Packages that `quire serve` needs beyond the engine."""
    missing = [name for name in _SERVER if not _has(name)]
    found = [f"{name} {_version(name)}" for name in _SERVER if name not in missing]
    if found:
        yield Finding("server", "good", ", ".join(found))
    for name in missing:
        yield Finding("server", "bad", f"{name} is not installed", _install(name))
    for name, use in _NICE.items():
        if _has(name):
            yield Finding("server", "good", f"{name} {_version(name)}: {use}")
        else:
            yield Finding("server", "note", f"no {name}: {use}", _install(name))


def cpuinfo() -> tuple[str, frozenset[str]]:
    """The name and the feature flags of the processor, as far as the system reports them."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return name, flags
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
    return name, flags


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


def _install(module: str) -> str:
    return f"{sys.executable} -m pip install {_DISTRIBUTIONS.get(module, module)}"


_MARKS = {"good": "ok  ", "note": "note", "bad": "BAD "}


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print every finding. Returns 1 if one of them is bad."""
    findings = list(all_findings())
    is_healthy = all(finding.level != "bad" for finding in findings)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        say(json.dumps({"healthy": is_healthy, "findings": rows}, indent=2))
    else:
        say("\n".join(_lines(findings)))
        say("\nhealthy" if is_healthy else "\nnot healthy: see the lines marked BAD")
    return 0 if is_healthy else 1


def _lines(findings: list[Finding]) -> Iterator[str]:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            yield f"\n{topic}" if topic != findings[0].topic else topic
        yield f"  {_MARKS[finding.level]}  {finding.text}"
        if finding.remedy:
            yield f"        -> {finding.remedy}"
