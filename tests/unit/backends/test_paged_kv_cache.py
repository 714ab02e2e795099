"""The reference's cache: groups of layers share its blocks, whatever the shape of their heads."""

from __future__ import annotations

import numpy as np
import pytest
from kv_layouts import group_of

from quire.backends.base import KVCacheSpec
from quire.backends.paged_kv_cache import PagedKVCache, block_bytes
from quire.config.kv_groups import KVGroup
from quire.config.kv_layout import KVLayout

WIDE = group_of((0, 2), 2, 6)
NARROW = group_of((1, 3), 1, 3)
LAYOUT = KVLayout((WIDE, NARROW), 2)
RANDOM = np.random.default_rng(4)


def rows(count: int, group: KVGroup) -> np.ndarray:
    return RANDOM.standard_normal((count, group.shape.num_heads * group.shape.key_dim), np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_layers_of_a_block_do_not_touch_each_other(dtype: str) -> None:
    cache = PagedKVCache(KVCacheSpec(3, 5, dtype, LAYOUT))
    written = {}
    for layer, (group, block) in {
        0: (WIDE, 1),
        2: (WIDE, 1),
        1: (NARROW, 2),
        3: (NARROW, 2),
    }.items():
        blocks, places = np.full(5, block, np.int32), np.arange(5)
        cache.write(layer, blocks, places, rows(5, group), rows(5, group))
        written[layer] = [held.copy() for held in cache.gather(layer, blocks[:1], 5)]
    for layer, expected in written.items():
        blocks = np.array([1 if layer in WIDE.layers else 2], np.int32)
        for found, held in zip(cache.gather(layer, blocks, 5), expected, strict=True):
            assert found.tobytes() == held.tobytes()
    assert not cache.read_blocks(np.array([0], np.int32)).any()


def test_a_block_is_as_large_as_its_widest_group_wants() -> None:
    assert block_bytes(LAYOUT, 5, "float32") == 2 * 2 * 5 * 12 * 4
    assert block_bytes(KVLayout((NARROW,), 2), 5, "float32") == 2 * 2 * 5 * 3 * 4
    assert block_bytes(LAYOUT, 5, "int8") == 2 * 2 * 5 * (12 + 2 * 4)
