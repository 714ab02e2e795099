"""Whether a GPU computes where `device` is `auto`, and what ranks on GPUs cannot do."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec

from quire import env
from quire.config.engine_args import EngineArgs
from quire.config.records import ParallelConfig
from quire.errors import ConfigError, QuireError

_DRIVER = "libcuda.so.1"


def reason_against_gpu(args: EngineArgs) -> str | None:
    """Why `device="auto"` does not take a GPU, in a clause; "" if it does. None: nothing is said,
    because another device is asked for, or the machine has no driver. Imports NVIDIA's packages
    only if there is a driver."""
    # Nothing has been checked yet: what is not of the right type is refused where it is checked.
    names, sizes = (args.device, args.backend), (args.tensor_parallel_size, args.data_parallel_size)
    has_types = all(isinstance(name, str | None) for name in names)
    if not has_types or not all(isinstance(size, int) for size in sizes):
        return None
    is_asked = names[0] in (None, "auto") and names[1] == "auto"
    if not is_asked or env.forced_backend() or not has_driver():
        return None
    if not env.cuda_is_emulated() and (find_spec("cuda") is None or find_spec("cuda.core") is None):
        return "cuda-core is not installed (pip install quire-engine[cuda,cuda-build])"
    from quire.backends.cuda.self_check import check_gpu, num_gpus

    if args.distributed_executor_backend == "ray" or args.nnodes != 1:
        return 'ranks on several machines are on GPUs if device="cuda" says so'
    wanted = sizes[0] * sizes[1]
    try:
        if (count := num_gpus()) < wanted:
            return f"the engine has {wanted} ranks, and CUDA sees {count} GPUs"
        check_gpu(0)
    except QuireError as error:
        return str(error)
    return ""


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed, or the emulated device takes its place."""
    if env.cuda_is_emulated():
        return True
    with suppress(OSError):
        ctypes.CDLL(_DRIVER)
        return True
    return False


def check_gpu_ranks(parallel: ParallelConfig) -> None:
    """Raises ConfigError for ranks that GPUs cannot have."""
    stages = parallel.pipeline_parallel_size
    if stages > 1:
        raise ConfigError(
            f"pipeline_parallel_size={stages} must be 1 on GPUs, whose ranks divide the columns of "
            "each layer; use tensor_parallel_size"
        )
