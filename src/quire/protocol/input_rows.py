"""`InputRows`: rows that a request gives in place of the embeddings of some tokens of its prompt:
prompt embeddings, the virtual tokens of a prompt adapter, the patches of an image.

Part of `EngineCoreRequest`. Knows no arrays: the rows are bytes, or the worker finds them by their
digest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Literal

import msgspec


class InputRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows for `count` positions of a prompt, from `first` on. The token ids at these positions are
    placeholders: any ids of the vocabulary, which have no effect."""

    first: int
    count: int
    digest: bytes
    """Identifies the rows: equal digests mean equal rows, and an equal `count`."""
    data: bytes = b""
    """The rows, float32, little-endian. Empty: the worker has rows of this digest."""
    kind: Literal["embeddings", "kv"] = "embeddings"
    """`embeddings`: a row is what the embedding of a token would be, scaled if the model scales it.
    `kv`: a row is K and V of all layers (prefix tuning): K of layer 0, V of layer 0, K of layer 1
    and so on, as they stand in the cache."""
    grid: tuple[int, int] | None = None
    """Rows and columns of a picture that these rows are, in order: they have positions by place.
    Of a video, they are those of each tile. None: each row has a position like a token."""
    tile_distance: float = 0.0
    """Positions from a tile of a video to the next one, on the axis of time."""
    is_span: bool = False
    """Whether the rows see each other, not only earlier ones. They are computed in one step."""

    @property
    def end(self) -> int:
        """The first position after the rows."""
        return self.first + self.count


def rows_within(given: Sequence[InputRows], begin: int, end: int) -> Iterator[InputRows]:
    """The rows of which a part is at positions `begin` to `end - 1`. `given`: in order of
    position."""
    for at in range(bisect_right(given, begin, key=attrgetter("end")), len(given)):
        if given[at].first >= end:
            return
        yield given[at]


def are_apart(given: Sequence[InputRows], num_tokens: int) -> bool:
    """Whether the rows are in order of position, do not overlap, and are within a prompt."""
    starts = [one.first for one in given] + [num_tokens]
    ends = [0] + [one.end for one in given]
    return all(end <= start for end, start in zip(ends, starts, strict=True)) and all(
        one.count >= 1 for one in given
    )


def token_ids_without(token_ids: Sequence[int], given: Sequence[InputRows]) -> list[int]:
    """The token ids of a prompt, without its placeholders."""
    kept, begin = list[int](), 0
    for one in given:
        kept += token_ids[begin : one.first]
        begin = one.end
    return kept + list(token_ids[begin:])
