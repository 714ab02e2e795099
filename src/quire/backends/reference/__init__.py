"""The reference backend: NumPy float32, clear before fast."""

from quire.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
