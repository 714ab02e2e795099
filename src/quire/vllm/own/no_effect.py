"""Records of vLLM's configuration that mean nothing here, and are accepted as arguments."""

from __future__ import annotations

from typing import Any


class KernelConfig(dict[str, Any]):
    """`kernel_config`: kernels are compiled ahead of time, whatever the fields say."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
