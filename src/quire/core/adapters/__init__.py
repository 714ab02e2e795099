"""Loads adapters for requests, and decides which stay in memory."""

from quire.core.adapters.manager import AdapterManager

__all__ = ["AdapterManager"]
