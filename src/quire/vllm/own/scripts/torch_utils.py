"""Helpers for logits processors written with torch. This module does not import torch, because the
module of the logits processor already has."""

from __future__ import annotations

import sys
from typing import Any


def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return the data of a list, array or tensor as a tensor on `device`, or copied to `out`.
    Raises ValueError if neither is given."""
    if device is None and out is None:
        raise ValueError("async_tensor_h2d requires `device` or `out`; pass device='cpu'")
    torch: Any = sys.modules["torch"]
    found = torch.as_tensor(data, dtype=out.dtype if dtype is None and out is not None else dtype)
    return found.to(device=device) if out is None else out.copy_(found)
