"""`current_platform`: what scripts ask vLLM about the device. It is the processor."""

from __future__ import annotations

import platform


def _no(*_: object) -> bool:
    return False


class CpuPlatform:
    """This machine, in vLLM's words."""

    device_type = "cpu"
    device_name = "cpu"
    is_cuda = is_cuda_alike = is_rocm = is_tpu = is_xpu = _no
    is_out_of_tree = is_unspecified = _no

    def is_cpu(self) -> bool:
        """Always."""
        return True

    def device_count(self) -> int:
        """The number of devices that compute: the processors together are one."""
        return 1

    def get_device_name(self, device_id: int = 0) -> str:
        """The kind of processor."""
        del device_id
        return platform.processor() or platform.machine()


current_platform = CpuPlatform()
