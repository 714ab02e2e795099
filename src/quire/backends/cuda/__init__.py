"""The CUDA backend: a program on an NVIDIA GPU, without torch. See `docs/internals/cuda.md`.

Nothing outside this package imports `cuda` or `triton`. Inside it, `driver.py` alone imports
`cuda`, and `build.py` and `kernels/` alone import `triton`.
"""

from quire.backends.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
