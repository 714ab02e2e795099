"""`current_platform`: describes the device, which is always the CPU."""

from __future__ import annotations

import platform


def _no(*_: object) -> bool:
    return False


class CpuPlatform:
    """This machine, with the interface of vLLM's platforms."""

    device_type = "cpu"
    device_name = "cpu"
    is_cuda = is_cuda_alike = is_rocm = is_tpu = is_xpu = _no
    is_out_of_tree = is_unspecified = _no

    def is_cpu(self) -> bool:
        """Return True."""
        return True

    def device_count(self) -> int:
        """Return 1: all processors together are one device."""
        return 1

    def get_device_name(self, device_id: int = 0) -> str:
        """Return the kind of processor."""
        del device_id
        return platform.processor() or platform.machine()


current_platform = CpuPlatform()
