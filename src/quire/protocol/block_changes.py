"""`BlockChanges`: the blocks that a prefix cache has got and lost, for the choice of engines."""

from __future__ import annotations

import msgspec


class BlockChanges(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A block that was stored and lost in one step is in both lists."""

    stored: list[bytes] = []
    """Keys, those of a request in order."""
    removed: list[bytes] = []
    is_cleared: bool = False
    """Whether all blocks were dropped before."""
