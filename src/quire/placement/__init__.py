"""Chooses which of several engines computes a request. Knows no text, no tensors and no HTTP."""

from quire.placement.policy import Placement

__all__ = ["Placement"]
