"""`ImageInput`: a picture or a sound of a request, whose rows are computed before it starts.

Part of `EngineCoreRequest`, next to the `InputRows` of the picture, which have no data yet.
"""

from __future__ import annotations

import msgspec

from quire.images.rules import Layout


class ImageInput(msgspec.Struct, frozen=True):
    """A decoded picture, video or sound."""

    digest: bytes
    """Identifies its tiles and what computes them: equal digests mean equal rows."""
    layout: Layout
    pixels: bytes
    """Bytes of the tiles, one after the other: RGB, or a spectrum."""
    first_rows: int
    """The first of its entries in `EngineCoreRequest.input_rows`."""
    num_entries: int
    """Number of its entries there. They follow each other, and have its rows in order."""
    num_tile_rows: int = 0
    """Rows of all tiles, if there is an `order`."""
    order: bytes = b""
    """Which of the rows of all tiles the picture has, int32; empty: all in order."""
