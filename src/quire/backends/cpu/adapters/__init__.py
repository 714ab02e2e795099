"""Adapters in native memory."""
