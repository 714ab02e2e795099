"""Which backend computes: the native one where it loads, NumPy otherwise; transformers what only
transformers has.

Called by `Worker`, and where an engine is configured.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from contextlib import suppress

from quire import env
from quire.backends.base import Backend
from quire.config.records import BackendName, DeviceConfig
from quire.env import MAX_THREADS
from quire.errors import BackendError, ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)


def choose_device(
    backend: str, num_threads: int | None, *, runs_transformers: bool = False
) -> DeviceConfig:
    """Settles backend, instruction set and threads; `backend` may be `auto`. `runs_transformers`:
    the model is a module of transformers, which only the backend of that name runs.

    Raises BackendError if a backend that was asked for by name does not load, and ConfigError for
    one that does not run the model.
    """
    wanted = env.forced_backend() or backend
    if wanted not in ("auto", "cpu", "reference"):
        name = "QUIRE_BACKEND" if env.forced_backend() else "backend"
        raise ConfigError(f"{name}={quoted(wanted)} is not known; use auto, cpu or reference")
    if num_threads is not None and (
        isinstance(num_threads, bool) or not 1 <= num_threads <= MAX_THREADS
    ):
        raise ConfigError(
            f"num_threads must be from 1 to {MAX_THREADS}, got {quoted(num_threads)}; leave it "
            "out for the machine's cores"
        )
    if runs_transformers:
        if backend != "auto":
            raise ConfigError(
                f"backend={quoted(backend)} does not run a model that transformers computes; leave "
                "backend out"
            )
        from quire.backends.cpu import default_num_threads

        return DeviceConfig("transformers", None, num_threads or default_num_threads())
    if wanted == "reference":
        return DeviceConfig("reference", None, 1)
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
    name: BackendName = device.backend
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
