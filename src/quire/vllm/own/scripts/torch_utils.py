"""What logits processors that are written with torch take from vLLM. Nothing here imports torch:
their modules have."""

from __future__ import annotations

import sys
from typing import Any


def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """A tensor of a list, array or tensor, on `device`; in `out`, if it is given. Raises ValueError
    if neither is given."""
    if device is None and out is None:
        raise ValueError("async_tensor_h2d needs a device, or a tensor `out`; pass device='cpu'")
    torch: Any = sys.modules["torch"]
    found = torch.as_tensor(data, dtype=out.dtype if dtype is None and out is not None else dtype)
    return found.to(device=device) if out is None else out.copy_(found)
