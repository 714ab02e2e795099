"""The cache that a module of transformers is given: a view of one request's blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache, CacheLayerMixin

from quire.backends.paged_kv_cache import PagedKVCache
from quire.errors import BackendError
from quire.program import Attention


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of one request, in their places among `size` positions."""

    cache: PagedKVCache
    tables: NDArray[np.int32]
    """[G, B]"""
    origin: int
    """Position of the first place, a multiple of `size`."""
    begin: int
    """Position of the first token to compute. Earlier ones are in the cache."""
    end: int
    """Position after the last token. Later places are padding, which no token attends to."""
    size: int

    @property
    def rows(self) -> slice:
        """The places of its tokens."""
        return slice(self.begin - self.origin, self.end - self.origin)


def paged_cache(piece: Piece, layers: Sequence[Attention], after_update: Callable[[], None]) -> Any:
    """transformers' `Cache`, which keeps K and V in the request's blocks."""
    return Cache(layers=[_PagedLayer(piece, op, after_update) for op in layers])


class _PagedLayer(CacheLayerMixin):  # type: ignore[misc]  # torch has no types here
    """One layer. The keys and values that it gives end with the piece's last place."""

    is_sliding = False
    """All positions are given; the module's own mask says which a token sees."""

    def __init__(self, piece: Piece, op: Attention, after_update: Callable[[], None]) -> None:
        super().__init__()
        self._piece, self._op, self._after_update = piece, op, after_update
        [memory] = op.memories()
        self._layer = memory.layer

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """There is nothing to make."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes the piece's own K and V [1, heads, size, width]; gives those of all positions up
        to its last place. Raises BackendError for another shape than planned."""
        piece, layer = self._piece, self._layer
        cache, size = piece.cache, piece.cache.spec.block_size
        table = piece.tables[cache.places[layer].group]
        positions = np.arange(piece.begin, piece.end)
        k, v = self._rows(key_states), self._rows(value_states)
        cache.write(
            self._layer, table[positions // size], (positions % size).astype(np.int32), k, v
        )
        seen = table[: -(-piece.end // size)]
        keys, values = cache.gather(layer, seen, piece.end)
        self._after_update()
        return self._given(keys, key_states), self._given(values, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys."""
        return self._piece.origin + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens before the piece's first place."""
        return self._piece.origin

    def get_max_length(self) -> int:
        """-1: the length is unbounded."""
        return -1

    def _rows(self, states: Any) -> NDArray[np.float32]:
        """Rows of the piece's tokens: [tokens, heads * head_dim]. Narrow heads are padded with
        zeros."""
        piece, op = self._piece, self._op
        is_planned = states.shape[:3] == (1, op.num_kv_heads, piece.size)
        if not is_planned or states.shape[3] > op.head_dim:
            raise BackendError(
                f"layer {op.layer}: keys or values are {list(states.shape)}; planned were "
                f"{[1, op.num_kv_heads, piece.size, op.head_dim]}"
            )
        states = states[0, :, piece.rows].transpose(0, 1).float()
        padded = np.zeros((len(states), op.num_kv_heads, op.head_dim), np.float32)
        padded[:, :, : states.shape[2]] = states.numpy()
        return padded.reshape(len(padded), -1)

    def _given(self, rows: NDArray[np.float32], states: Any) -> Any:
        """[1, heads, origin + size, width] in the module's type, with zeros after the last
        token."""
        piece, op = self._piece, self._op
        width = states.shape[3]
        full = torch.zeros(
            (1, op.num_kv_heads, piece.origin + piece.size, width), dtype=states.dtype
        )
        by_head = rows.reshape(len(rows), op.num_kv_heads, op.head_dim)[:, :, :width]
        full[0, :, : len(rows)] = torch.from_numpy(by_head).transpose(0, 1)
        return full
