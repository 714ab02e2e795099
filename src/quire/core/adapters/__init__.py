"""Loads adapters for requests, and decides which stay in memory."""

from quire.core.adapters.gate import AdapterGate
from quire.core.adapters.manager import AdapterManager

__all__ = ["AdapterGate", "AdapterManager"]
