"""Models that modules of transformers compute, on the paged KV cache: slow, and of any kind.

Loading this package imports torch; `quire.backends.registry` does so for such models alone.
"""

from quire.backends.transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
