"""Whether the GPU computes what it should, found in a moment: for `device="auto"`."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from quire import env
from quire.backends.cuda.backend import open_device
from quire.backends.cuda.device import Device
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Arguments, Launch
from quire.backends.cuda.lowering.linear import reduce_kernel
from quire.backends.cuda.memory import Memory
from quire.errors import BackendError

_ROWS, _WIDTH, _CHUNKS = 3, 300, 5


def num_gpus() -> int:
    """The GPUs that CUDA sees. Raises BackendError."""
    if env.cuda_is_emulated():
        return 1 << 10
    from quire.backends.cuda.driver import count_gpus

    return count_gpus()


@cache
def check_gpu(index: int) -> None:
    """Launches one kernel and compares its bits with those of its twin. Raises BackendError if they
    differ, if the GPU cannot be used, or if compiled kernels for it are missing."""
    found, wanted = _reduced(open_device(index)), _reduced(EmulatedDevice())
    if not np.array_equal(found, wanted):
        count = int((found != wanted).sum())
        raise BackendError(f"a kernel gives {count} of {wanted.size} numbers with other bits")


def _reduced(device: Device) -> NDArray[np.uint16]:
    """Rounded sums of random numbers, by the kernel that adds the chunks of a product."""
    random, memory = np.random.default_rng(1), Memory()
    numbers = random.standard_normal(_CHUNKS * _ROWS * _WIDTH).astype(np.float32)
    parts, bias = memory.add(numbers.nbytes), memory.add(4 * _WIDTH)
    out = np.zeros(_ROWS * _WIDTH, np.uint16)
    y = memory.add(out.nbytes)
    args: Arguments = {
        "parts": parts, "bias": bias, "y": y, "num_rows": _ROWS, "N": _WIDTH,
        "num_chunks": _CHUNKS, "stride_y": _WIDTH, "has_bias": 1,
    }  # fmt: skip
    device.hold(memory)
    try:
        device.upload(parts, numbers)
        device.upload(bias, numbers[:_WIDTH])
        device.launch(Launch(reduce_kernel("bf16"), (_ROWS, -(-_WIDTH // 256)), args))
        device.download(y, out)
    finally:
        device.release(memory)
    return out
