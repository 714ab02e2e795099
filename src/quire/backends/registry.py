"""Which backend computes: the native one where it loads, NumPy otherwise; transformers what only
transformers has; a GPU, or the backend of another package, if it is asked for.

Called by `Worker`, and where an engine is configured. A package brings a backend with an entry
point of the group `quire.backends`: a function that takes a `DeviceConfig` and returns a `Backend`.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points

from quire import env
from quire.backends.base import Backend
from quire.config.records import DeviceConfig
from quire.env import MAX_THREADS
from quire.errors import BackendError, ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)

GROUP = "quire.backends"
_OWN = ("auto", "cpu", "cuda", "reference")
_GPU = re.compile(r"cuda(?::([0-9]{1,3}))?")


def choose_device(
    backend: str,
    num_threads: int | None,
    *,
    device: str | None = None,
    runs_transformers: bool = False,
) -> DeviceConfig:
    """Settles backend, device, instruction set and threads; `backend` and `device` may be `auto`.
    `runs_transformers`: the model is a module of transformers, which only the backend of that name
    runs.

    Raises BackendError if a backend that was asked for by name does not load, and ConfigError for
    one that does not run the model.
    """
    wanted = env.forced_backend() or backend
    name = "QUIRE_BACKEND" if env.forced_backend() else "backend"
    if wanted not in _OWN and wanted not in _brought():
        choices = ", ".join(sorted({*_OWN, *_brought()}))
        raise ConfigError(f"{name}={quoted(wanted)} is not known; use one of {choices}")
    gpu = _gpu_index(device)
    if (gpu is not None and wanted not in ("auto", "cuda")) or (
        device == "cpu" and wanted == "cuda"
    ):
        raise ConfigError(
            f"device={quoted(device)} and {name}={quoted(wanted)} contradict each other; leave one "
            "of them out"
        )
    if num_threads is not None and (
        isinstance(num_threads, bool) or not 1 <= num_threads <= MAX_THREADS
    ):
        raise ConfigError(
            f"num_threads must be from 1 to {MAX_THREADS}, got {quoted(num_threads)}; leave it "
            "out for the machine's cores"
        )
    if runs_transformers:
        if backend != "auto" or gpu is not None:
            field, value = ("device", device) if backend == "auto" else ("backend", backend)
            raise ConfigError(
                f"{field}={quoted(value)} does not run a model that transformers computes; leave "
                f"{field} out"
            )
        from quire.backends.cpu import default_num_threads

        return DeviceConfig("transformers", None, num_threads or default_num_threads())
    if gpu is not None or wanted == "cuda":
        return DeviceConfig("cuda", None, num_threads or 1, gpu_index=gpu or 0)
    if wanted == "reference":
        return DeviceConfig("reference", None, 1)
    if wanted not in _OWN:
        return DeviceConfig(wanted, None, num_threads or 1)
    from quire.backends.cpu import default_num_threads, load

    cores = _compute_cores()
    try:
        library = load(env.forced_isa())
    except BackendError as error:
        if wanted == "cpu":
            raise
        logger.warning("%s. NumPy computes instead, slowly", error)
        return DeviceConfig("reference", None, 1)
    return DeviceConfig("cpu", library.isa, num_threads or default_num_threads(), cores)


def _gpu_index(device: str | None) -> int | None:
    """The number of a GPU; None for the CPU. Raises ConfigError for another name."""
    if device is None or device in ("auto", "cpu"):
        return None
    found = _GPU.fullmatch(device)
    if found is None:
        raise ConfigError(
            f"device={quoted(device)} is not known; use auto, cpu, cuda, or cuda:1 for the second "
            "GPU"
        )
    return int(found[1] or 0)


def _brought() -> set[str]:
    """Names of the backends that packages bring."""
    return {entry.name for entry in entry_points(group=GROUP)}


def _compute_cores() -> tuple[int, ...] | None:
    cores = env.compute_cores()
    allowed = os.sched_getaffinity(0)
    if cores is not None and not allowed.issuperset(cores):
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND={quoted(os.environ['VLLM_CPU_OMP_THREADS_BIND'])}: this "
            f"process may use the cores {sorted(allowed)}, and not all of these; or write auto"
        )
    return cores


def make_backend(device: DeviceConfig) -> Backend:
    """The backend that `choose_device` settled on. Raises BackendError."""
    name = device.backend
    if name == "reference":
        from quire.backends.reference import ReferenceBackend

        _survive_missing_pages()
        return ReferenceBackend()
    if name == "transformers":
        from quire.models.transformers.installation import leave_out_torchvision

        leave_out_torchvision()
        from quire.backends.transformers import TransformersBackend

        _survive_missing_pages()
        return TransformersBackend(device.num_threads)
    if name == "cuda":
        from quire.backends.cuda import CudaBackend

        return CudaBackend(index=device.gpu_index, enforce_eager=device.enforce_eager)
    if name != "cpu":
        [entry] = entry_points(group=GROUP, name=name)
        make: Callable[[DeviceConfig], Backend] = entry.load()
        return make(device)
    from quire.backends.cpu import CpuBackend

    return CpuBackend(device.num_threads, device.isa)


def _survive_missing_pages() -> None:
    """A weights file that is cut short while it is mapped is an error where the native library
    loads; elsewhere it ends the process, with a word on standard error."""
    from quire.backends.cpu.library import guard_mappings

    try:
        guard_mappings()
    except BackendError:
        if not faulthandler.is_enabled() and sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # standard error is closed
                faulthandler.enable(sys.__stderr__)
