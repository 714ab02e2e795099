"""Records of vLLM's configuration that Quire accepts as arguments and ignores."""

from __future__ import annotations

from typing import Any


class KernelConfig(dict[str, Any]):
    """`kernel_config`. The fields have no effect, because kernels are compiled ahead of time."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
