"""Runs steps on one device: the model, its KV cache and the persistent batch."""

from quire.worker.worker import Worker

__all__ = ["Worker"]
