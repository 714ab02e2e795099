"""The state of every KV block as a short text, for the live view in the browser."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from quire.kvcache.manager import KVCacheManager
from quire.units import ceil_div

MAX_CELLS = 4096


def block_map(manager: KVCacheManager) -> dict[str, Any]:
    """Counts by state, and `map`: the states in order of block id, run-length coded as a letter
    and a count of cells (`f` free, `c` cached, `u` held once, `s` shared). A cell stands for
    `blocks_per_cell` blocks and shows the first of s, u, c, f among them."""
    states = manager.pool.states()
    per_cell = ceil_div(len(states), MAX_CELLS)
    cells = states
    if per_cell > 1:
        parts = (states[i : i + per_cell] for i in range(0, len(states), per_cell))
        cells = "".join(next(letter for letter in "sucf" if letter in part) for part in parts)
    names = {"free": "f", "cached": "c", "used": "u", "shared": "s"}
    return {
        "block_size": manager.block_size,
        "num_blocks": len(states),
        **{name: states.count(letter) for name, letter in names.items()},
        "usage": manager.usage,
        "blocks_per_cell": per_cell,
        "map": "".join(f"{letter}{len(list(run))}" for letter, run in groupby(cells)),
    }
