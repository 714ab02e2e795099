"""Facts about the GPU, for `quire doctor` and `quire collect-env`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from contextlib import suppress
from pathlib import Path

from quire import env
from quire.errors import BackendError
from quire.units import format_bytes

INSTALL = "pip install quire-engine[cuda,cuda-build]"
_DRIVER = Path("/proc/driver/nvidia/version")
_PACKAGES = ("cuda-core", "cuda-bindings", "triton")


def driver_version() -> str:
    """NVIDIA's driver of this machine; "" if there is none."""
    with suppress(OSError):
        return _DRIVER.read_text(encoding="utf-8").partition("\n")[0].partition(":")[2].strip()
    return ""


def has_packages() -> bool:
    """Whether NVIDIA's packages are installed, or the emulated device takes their place."""
    return env.cuda_is_emulated() or importlib.util.find_spec("cuda") is not None


def gpu_summary() -> str:
    """The first GPU in one line. Raises BackendError if it cannot be used."""
    from quire.backends.cuda.backend import CudaBackend, open_device

    device = open_device(0)
    facts = device.facts
    free, total = format_bytes(facts.free_bytes), format_bytes(facts.total_bytes)
    text = f"{CudaBackend(device).capabilities.description}; {free} of {total} free"
    if facts.bytes_per_second:
        text += f", {facts.bytes_per_second / 1e9:,.0f} GB/s at most"
    return text


def kernels_summary() -> str:
    """The origin of compiled kernels; "" if there are none."""
    from quire.backends.cuda.compiled import shipped_architectures

    found = [f"sm_{number}" for number in shipped_architectures()]
    parts = [f"in this installation for {', '.join(found)}"] if found else []
    if importlib.util.find_spec("triton") is not None:
        parts.append("compiled by Triton when they are first used")
    return "; ".join(parts)


def gpu_facts() -> dict[str, str]:
    """All facts by name."""
    found = {"driver": driver_version() or "none"}
    for name in _PACKAGES:
        found[name] = "not installed"
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    found["kernels"] = kernels_summary() or "none"
    if has_packages():
        try:
            found["GPU"] = gpu_summary()
        except BackendError as error:
            found["GPU"] = f"none: {error}"
    return found
