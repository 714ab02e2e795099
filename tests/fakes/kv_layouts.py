"""Layouts of the KV cache by hand, for tests that need no model."""

from __future__ import annotations

from quire.config.kv_groups import KVGroupSpec, KVLayout


def layout_of(*windows: int | None) -> KVLayout:
    """A group of one layer for each window; None sees everything."""
    groups = [KVGroupSpec((layer,), 1, 1, window) for layer, window in enumerate(windows)]
    return KVLayout(tuple(groups), 1)


FULL = layout_of(None)
"""One group that sees everything."""
