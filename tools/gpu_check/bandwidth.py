"""Bandwidth of products and of attention, in some layers of a large shape."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.profile import Profile, Times
from tools.gpu_check.report import Row, share
from tools.gpu_check.shapes import model_folder, shape_of

from quire.backends.cuda.device import Device

_LAYERS = 4
_LEAST_SHARE = 0.8
_SIZE, _TIMES = 8192, 5


def check_bandwidth(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Each kind of op alone, in steps of several sizes."""
    config = shape_of(is_emulated=sizes.is_emulated)
    config["num_hidden_layers"] = 1 if sizes.is_emulated else _LAYERS
    with model_folder(config) as folder:
        profile = Profile(device, folder, max(sizes.requests), sizes.context, sizes.prompt)
        for count in sizes.requests:
            name = f"{count} request{'s' * (count > 1)}"
            rows = _generating(profile, name, count, sizes, device.facts.bytes_per_second)
            yield from guarded(sizes, name, rows)
        yield from guarded(sizes, "prompt", _prompt(profile, sizes))
        profile.close()


def _generating(
    profile: Profile, name: str, count: int, sizes: Sizes, peak: float
) -> Iterator[Row]:
    times = profile.decode(count, sizes.least_seconds)
    if not times.is_recorded:
        yield Row(name, "launches were not recorded: times include the host's")
    # More requests are bound by operations, and a few have little K and V.
    products = profile.linear_bytes / (times.by_op["Linear"] + times.by_op["Logits"])
    yield from _rates(f"{name}, products", products, peak, has_goal=count <= 32)
    attended = times.work.kv_bytes / times.by_op["Attention"]
    yield from _rates(f"{name}, attention", attended, peak, has_goal=count >= 32)
    yield from _by_op(name, times)


def _prompt(profile: Profile, sizes: Sizes) -> Iterator[Row]:
    times = profile.prefill(sizes.least_seconds)
    name, operations = f"prompt of {sizes.prompt}", times.work.operations / times.of_step
    yield Row(f"{name}, all kernels", operations / 1e12, "TFLOP/s")
    yield from _by_op(name, times)
    most = 0.0 if sizes.is_emulated else _operations_of_torch()
    if most:
        yield Row("product of torch, 8192 in each direction", most / 1e12, "TFLOP/s")
        yield share(f"{name}, of that", operations / most, 0.6)


def _rates(name: str, rate: float, peak: float, *, has_goal: bool) -> Iterator[Row]:
    yield Row(name, rate / 1e9, "GB/s")
    if peak and has_goal:
        yield share(f"{name}, of the peak", rate / peak, _LEAST_SHARE)


def _by_op(name: str, times: Times) -> Iterator[Row]:
    """The time of each kind of op, the longest first."""
    shares = sorted(times.by_op.items(), key=lambda one: -one[1])
    text = ", ".join(f"{kind} {1e6 * seconds:.0f}" for kind, seconds in shares)
    yield Row(f"{name}, us by op", f"{1e6 * times.of_step:.0f}: {text}")


def _operations_of_torch() -> float:
    """Operations per second of a large product of bfloat16, if torch is installed; 0 if not."""
    try:
        import torch
    except ImportError:
        return 0.0
    x = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        x @ x
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_TIMES):
        x @ x
    torch.cuda.synchronize()
    return 2 * _SIZE**3 * _TIMES / (time.perf_counter() - begin)
