"""Bandwidth of products and of attention, in some layers of a large shape."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tools.gpu_check.parts import Sizes
from tools.gpu_check.profile import Profile
from tools.gpu_check.report import Row, share
from tools.gpu_check.shapes import model_folder, shape_of

from quire.backends.cuda.device import Device

_LAYERS = 4
_LEAST_SHARE = 0.8
_SIZE, _TIMES = 8192, 5


def check_bandwidth(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Each kind of op alone, in steps of several sizes."""
    config = {**shape_of(is_emulated=sizes.is_emulated), "num_hidden_layers": _LAYERS}
    if sizes.is_emulated:
        config["num_hidden_layers"] = 1
    with model_folder(config) as folder:
        profile = Profile(device, folder, max(sizes.requests), sizes.context, sizes.prompt)
        peak = device.facts.bytes_per_second
        for count in sizes.requests:
            times = profile.decode(count, sizes.least_seconds)
            name = f"{count} request{'s' * (count > 1)}"
            if not times.is_recorded:
                yield Row(name, "launches were not recorded: times include the host's")
            products = times.by_op["Linear"] + times.by_op.get("Logits", 0.0)
            yield from _rates(f"{name}, products", profile.linear_bytes / products, peak, count)
            attended = times.work.kv_bytes / times.by_op["Attention"]
            yield from _rates(f"{name}, attention", attended, peak, count)
            yield from _others(name, times.by_op, times.of_step)
        times = profile.prefill(sizes.least_seconds)
        name = f"prompt of {sizes.prompt}"
        yield Row(f"{name}, all kernels", times.work.operations / times.of_step / 1e12, "TFLOP/s")
        yield from _others(name, times.by_op, times.of_step)
        profile.close()
    yield from _torch(sizes)


def _rates(name: str, bytes_per_second: float, peak: float, count: int) -> Iterator[Row]:
    yield Row(name, bytes_per_second / 1e9, "GB/s")
    if peak and count <= 32:  # more requests are bound by operations
        yield share(f"{name}, of the peak", bytes_per_second / peak, _LEAST_SHARE)


def _others(name: str, by_op: dict[str, float], of_step: float) -> Iterator[Row]:
    """The time of each kind of op, the longest first."""
    shares = sorted(by_op.items(), key=lambda one: -one[1])
    text = ", ".join(f"{kind} {1e6 * seconds:.0f}" for kind, seconds in shares)
    yield Row(f"{name}, us by op", f"{1e6 * of_step:.0f}: {text}")


def _torch(sizes: Sizes) -> Iterator[Row]:
    """The peak of products of bfloat16 by torch, if it is installed."""
    if sizes.is_emulated:
        return
    try:
        import torch
    except ImportError:
        return
    x = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        x @ x
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_TIMES):
        x @ x
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / _TIMES
    yield Row("product of torch, 8192 in each direction", 2e-12 * _SIZE**3 / seconds, "TFLOP/s")
