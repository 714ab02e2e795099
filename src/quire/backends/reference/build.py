"""Names the NumPy that computes: by its version, and by what it computes."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np

from quire.system.libc import libc_version


@cache
def build() -> str:
    """Differs where NumPy or its BLAS would give other bits.

    Both choose their code by the processor, and do not say which; so a few results stand for it.
    """
    numbers = np.linspace(-3.0, 3.0, 8 * 320, dtype=np.float32).reshape(8, 320)
    wide = numbers.astype(np.float64)
    results = (numbers @ numbers.T, np.exp(numbers), np.tanh(numbers), np.cos(wide), np.sin(wide))
    digest = hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()
    return f"NumPy {np.__version__} {digest[:32]} {libc_version()}"
