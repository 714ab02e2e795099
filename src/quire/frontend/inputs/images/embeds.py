"""`image_embeds`: images that the caller has encoded, as rows of the text model.

The rows must be as many as the encoder would give, because they decide where text continues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.errors import PromptError, quoted
from quire.frontend.inputs.prompt_embeds import as_rows
from quire.frontend.inputs.tensors import tensor_of
from quire.images.picture import Picture
from quire.images.rules import (
    GridTiles,
    Layout,
    LongestEdge,
    MostTokens,
    RatioTiles,
    Resizing,
    Size,
)

if TYPE_CHECKING:
    from quire.models.media.model import VisionModel

NOT_ENABLED = "You must set `--enable-mm-embeds` to input `image_embeds`."
_NAME, _GRID = "image_embeds", "image_grid_thw"
_MOST_ROWS = 1 << 20


def embedded_pictures(value: Any, vision: VisionModel) -> list[Picture]:
    """The images of a tensor [rows, width] or [images, rows, width], of its base64, or of a dict
    with it and the grids [images, 3] in patches. Raises PromptError."""
    grids = None
    if isinstance(value, Mapping):
        if not {_NAME} <= value.keys() <= {_NAME, _GRID}:
            raise _error(f"must be a tensor, or a dict with {_NAME} and {_GRID}")
        if value.get(_GRID) is not None:
            grids = _grids(value[_GRID])
        value = value[_NAME]
    if isinstance(value, str):
        value = tensor_of(value, _NAME)
    has_images = getattr(value, "ndim", 0) == 3
    if grids is None:
        parts = list(value) if has_images else [value]
        layouts = [_layout(vision, _length(one)) for one in parts]
    else:
        layouts = [_layout_of_grid(vision, grid) for grid in grids]
        counts = [vision.num_rows(one) for one in layouts]
        rows = value.reshape(-1, value.shape[-1]) if has_images else value
        if _length(rows) != sum(counts):
            raise _error(
                f"must have {sum(counts)} rows for {_GRID} {quoted(grids)}, not {_length(rows)}"
            )
        ends = np.cumsum(counts).tolist()
        parts = [rows[end - count : end] for end, count in zip(ends, counts, strict=True)]
    width = vision.row_width
    return [
        _picture(as_rows(rows, width, _MOST_ROWS, _NAME), layout)
        for rows, layout in zip(parts, layouts, strict=True)
    ]


def _length(rows: Any) -> int:
    shape = tuple(getattr(rows, "shape", ()))
    if len(shape) != 2:
        raise _error(f"must be a tensor of shape (rows, hidden_size), got {quoted(rows)}")
    return int(shape[0])


def _grids(given: Any) -> list[list[int]]:
    """The grids as lists of three numbers. Raises PromptError."""
    if isinstance(given, str):
        given = tensor_of(given, _GRID)
    try:
        array = np.asarray(given)
    except ValueError:  # lists of different lengths
        array = np.empty(0)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iuf":
        raise _error(f"must have {_GRID} of shape (images, 3)")
    if not np.isfinite(array).all() or (array < 1).any() or (array > _MOST_ROWS).any():
        raise _error(f"must have {_GRID} of numbers from 1 to {_MOST_ROWS}")
    return [[int(one) for one in grid] for grid in array.tolist()]


def _layout_of_grid(vision: VisionModel, grid: list[int]) -> Layout:
    unit = getattr(vision.patching, "patch", 0)
    frames, rows, columns = grid
    size: Size = (rows * unit, columns * unit)
    if vision.patching.grid((unit, unit)) is None:
        raise _error(f"must have no {_GRID}: this model has no positions by place")
    found = vision.patching.grid(size)
    merge = getattr(vision.patching, "merge", 1)
    if frames != 1 or found is None or rows % merge or columns % merge:
        raise _error(f"must have {_GRID} of the form [1, H, W], multiples of {merge}; got {grid}")
    return Layout((size,))


def _layout(vision: VisionModel, count: int) -> Layout:
    """The layout of an image with so many rows, for models whose tiles have one size, or whose rows
    have no places."""
    resizing = vision.resizing
    if isinstance(resizing, MostTokens):
        if not 1 <= count <= resizing.most:
            raise _error(f"must have 1 to {resizing.most} rows, not {count}")
        return Layout(((resizing.side, resizing.side * count),))
    if not isinstance(resizing, Resizing) or isinstance(resizing, LongestEdge | GridTiles):
        raise _error("cannot be used: the tokens of this model depend on the size of an image")
    tile = resizing.layout((64, 64)).sizes[0]
    if vision.patching.grid(tile) is not None:
        raise _error(f"must be a dict with {_NAME} and {_GRID}, because images have any size")
    per_tile = vision.patching.num_rows(tile)
    most = resizing.most + 1 if isinstance(resizing, RatioTiles) else 1
    num_tiles = count // per_tile
    if count % per_tile or not 1 <= num_tiles <= most:
        wanted = (
            f"{per_tile} rows" if most == 1 else f"{per_tile} rows for each of 1 to {most} tiles"
        )
        raise _error(f"must have {wanted}, not {count}")
    return Layout((tile,) * num_tiles)


def _picture(rows: NDArray[np.float32], layout: Layout) -> Picture:
    data = np.ascontiguousarray(rows, "<f4")
    state = hashlib.sha256(b"quire.embeds.1")
    state.update(hashlib.sha256(msgspec.msgpack.encode(layout)).digest())
    state.update(data.tobytes())
    return Picture(state.digest(), layout, b"", rows=data)


def _error(message: str) -> PromptError:
    return PromptError(f"`{_NAME}` {message}", parameter=_NAME)
