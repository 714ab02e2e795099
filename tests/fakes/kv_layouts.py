"""Layouts of the KV cache by hand, for tests that need no model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.backends.base import Backend
from quire.config.kv_groups import FullGroup, KVShape, WindowGroup
from quire.config.kv_layout import AnyKVGroup, KVLayout


def group_of(
    layers: Sequence[int], num_heads: int, dim: int, window: int | None = None
) -> AnyKVGroup:
    """A group whose K and V have the same width."""
    shape = KVShape(num_heads, dim, dim)
    if window is None:
        return FullGroup(tuple(layers), shape)
    return WindowGroup(tuple(layers), shape, window)


def layout_of(*windows: int | None) -> KVLayout:
    """A group of one layer for each window; None sees everything."""
    groups = [group_of((layer,), 1, 1, window) for layer, window in enumerate(windows)]
    return KVLayout(tuple(groups), 1)


FULL = layout_of(None)
"""One group that sees everything."""


def skip_without(backend: Backend, *, kv_dtype: str) -> None:
    """Skips what needs a KV cache that a backend does not have."""
    if kv_dtype not in backend.capabilities.kv_cache_dtypes:
        pytest.skip(f"this backend, {backend.capabilities.name}, has no KV cache of {kv_dtype}")
