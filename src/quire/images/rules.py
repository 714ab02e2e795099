"""Resizing and tiling as data: what a model's image processor does with a picture.

A family makes one record of the checkpoint's preprocessor_config.json. `layout` needs only the size
of the picture, so the number of its tokens is known from its header. `tiles` needs Pillow and runs
in the child process. All sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import msgspec

from quire.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
_MAX_SIDE = 4096
"""Idefics3 scales no picture beyond it."""
_MAX_RATIO = 200
"""Largest ratio of the sides, as in Qwen's image processor."""


class Layout(msgspec.Struct, frozen=True):
    """The tiles of a picture or a sound, in order."""

    sizes: tuple[Size, ...]
    rows: int = 0
    columns: int = 0
    """The grid of the first tiles; 0: the picture is not divided."""
    margins: tuple[int, int] = (0, 0)
    """Rows and columns of patches at each edge of the grid that are padding."""
    frames: int = 1
    """Frames of a tile, one after the other; more than 1 in a video."""
    num_given: int = 0
    """Frames of a video, without those that fill the last tile."""
    depth: int = 3
    """Bytes of a pixel (RGB), or of a number of a sound's spectrum (float32)."""
    seconds: float = 0.0
    """Length of a sound in seconds, without padding."""

    def num_bytes(self, tile: int) -> int:
        """Bytes of a tile."""
        return math.prod(self.sizes[tile]) * self.depth * self.frames


class Rules(msgspec.Struct, frozen=True):
    """The settings by which a file of one modality is decoded, as data."""

    modality: ClassVar[str] = "image"
    """A name of `MODALITIES`."""


class Resizing(Rules, frozen=True, kw_only=True):
    """Settings that all families share: the filter, and the numbers of the normalisation."""

    resample: int
    """Pillow's number of the filter."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale: float = 1 / 255

    def layout(self, size: Size) -> Layout:
        """The tiles of a picture of this size. Raises RequestError if the model cannot take it."""
        raise NotImplementedError

    def tiles(self, image: Image) -> Iterator[Image]:
        """The tiles, as `layout` describes them."""
        raise NotImplementedError

    def _resized(self, image: Image, size: Size) -> Image:
        return image.resize((size[1], size[0]), self.resample)


class OneTile(Resizing, frozen=True):
    """A picture is resized and not divided."""

    def layout(self, size: Size) -> Layout:
        return Layout((self._size(size),))

    def tiles(self, image: Image) -> Iterator[Image]:
        yield self._resized(image, self._size((image.height, image.width)))

    def _size(self, size: Size) -> Size:
        """The size of the tile. Raises RequestError as `layout` does."""
        raise NotImplementedError


class Whole(OneTile, frozen=True, tag="whole"):
    """One tile of a fixed size; the ratio of the sides is not kept (SigLIP in Gemma 3)."""

    size: Size

    def _size(self, size: Size) -> Size:
        del size
        return self.size


class Cropped(Resizing, frozen=True, tag="cropped"):
    """The shorter side gets a fixed length, and the middle is cut out (CLIP in LLaVA)."""

    shortest: int
    crop: Size

    def layout(self, size: Size) -> Layout:
        _check_ratio(size)  # the longer side is resized before the middle is cut out
        return Layout((self.crop,))

    def tiles(self, image: Image) -> Iterator[Image]:
        short, long = sorted(image.size)
        long = int(self.shortest * long / short)
        height, width = self.shortest, long
        if image.height > image.width:
            height, width = width, height
        resized = self._resized(image, (height, width))
        top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
        # Outside of the picture, Pillow fills with zeros.
        yield resized.crop((left, top, left + self.crop[1], top + self.crop[0]))


class SquareTiles(Resizing, frozen=True, tag="square_tiles"):
    """Square tiles of the enlarged picture, row by row, then the whole picture as one tile
    (Idefics3, SmolVLM)."""

    longest: int
    """Length of the longer side before it is made a multiple of `tile`."""
    tile: int
    is_split: bool = True

    def layout(self, size: Size) -> Layout:
        height, width = self._sizes(size)[-1]
        whole = (self.tile, self.tile)
        if not self.is_split or (height <= self.tile and width <= self.tile):
            return Layout((whole,))
        rows, columns = height // self.tile, width // self.tile
        return Layout((whole,) * (rows * columns + 1), rows, columns)

    def tiles(self, image: Image) -> Iterator[Image]:
        layout = self.layout((image.height, image.width))
        for size in self._sizes((image.height, image.width)):
            image = self._resized(image, size)
        whole = (self.tile, self.tile)
        for row in range(layout.rows):
            for column in range(layout.columns):
                left, top = column * self.tile, row * self.tile
                yield image.crop((left, top, left + self.tile, top + self.tile))
        yield self._resized(image, whole) if image.size != whole or not self.is_split else image

    def _sizes(self, size: Size) -> list[Size]:
        """The sizes of the two resizes; without splitting, of the first alone."""
        first = _below(_with_longest(size, self.longest), _MAX_SIDE)
        if not self.is_split:
            return [first]
        height, width = first
        ratio = width / height
        if width >= height:
            width = _multiple(width, self.tile)
            height = _multiple(int(width / ratio), self.tile)
        else:
            height = _multiple(height, self.tile)
            width = _multiple(int(height * ratio), self.tile)
        return [first, (height, width)]


class RatioTiles(Resizing, frozen=True, tag="ratio_tiles"):
    """Tiles in the grid whose ratio is the closest to the picture's, and a small copy of the whole
    picture if there are several (InternVL)."""

    tile: Size
    fewest: int
    most: int
    is_split: bool = True

    def layout(self, size: Size) -> Layout:
        if not self.is_split or self.most <= 1:
            return Layout((self.tile,))
        columns, rows = _closest_grid(size, self.tile, self.fewest, self.most)
        count = rows * columns
        return Layout((self.tile,) * (count + (count > 1)), rows, columns)

    def tiles(self, image: Image) -> Iterator[Image]:
        layout = self.layout((image.height, image.width))
        height, width = self.tile
        rows, columns = max(1, layout.rows), max(1, layout.columns)
        resized = self._resized(image, (rows * height, columns * width))
        for row in range(rows):
            for column in range(columns):
                left, top = column * width, row * height
                yield resized.crop((left, top, left + width, top + height))
        if rows * columns > 1:
            yield self._resized(image, self.tile)


class GridTiles(Resizing, frozen=True, tag="grid_tiles"):
    """A small copy of the whole picture, then tiles of the enlarged one, padded with zeros to the
    most suitable of several sizes (LLaVA-NeXT)."""

    tile: int
    sizes: tuple[Size, ...]
    """Multiples of `tile`."""
    side: int
    """Patches along each side of a tile."""

    def layout(self, size: Size) -> Layout:
        height, width = self._size(size)
        rows, columns = height // self.tile, width // self.tile
        grid = (rows * self.side, columns * self.side)
        tiles = ((self.tile, self.tile),) * (rows * columns + 1)
        return Layout(tiles, rows, columns, margins=_margins(size, grid))

    def tiles(self, image: Image) -> Iterator[Image]:
        yield self._resized(image, (self.tile, self.tile))
        size = (image.height, image.width)
        height, width = self._size(size)
        inner = _within(size, (height, width))
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        # Outside of the picture, Pillow fills with zeros.
        padded = self._resized(image, inner).crop((-left, -top, width - left, height - top))
        for row in range(0, height, self.tile):
            for column in range(0, width, self.tile):
                yield padded.crop((column, row, column + self.tile, row + self.tile))

    def _size(self, size: Size) -> Size:
        """The size that loses the fewest pixels, and of such the smallest."""
        height, width = size

        def key(one: Size) -> tuple[int, int]:
            scale = min(one[1] / width, one[0] / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            return -used, one[0] * one[1] - used

        return min(self.sizes, key=key)


class Multiples(OneTile, frozen=True, tag="multiples"):
    """One tile whose sides are multiples of `factor`, with a number of pixels between two limits
    (Qwen-VL)."""

    factor: int
    fewest_pixels: int
    most_pixels: int

    def most_squares(self, count: int = 1) -> int:
        """Most squares of `factor` x `factor` of a tile, for `count` pictures of one size. Narrow
        pictures have more than the limits say, because no side is shorter than a square."""
        most, fewest = (
            pixels / count / self.factor**2 for pixels in (self.most_pixels, self.fewest_pixels)
        )
        found = max(math.floor(most), math.floor(math.sqrt(_MAX_RATIO * most)))
        for rows in range(1, math.ceil(math.sqrt(fewest)) + 1):
            columns = min(fewest / (rows - 1 or 1 / _MAX_RATIO), math.sqrt(_MAX_RATIO * fewest))
            found = max(found, rows * math.ceil(columns))
        return found

    def _size(self, size: Size, count: int = 1, padded: int = 1) -> Size:
        """The size for `count` pictures of one size, of which `padded` are computed."""
        _check_ratio(size)
        (height, width), factor = size, self.factor
        new = [round(side / factor) * factor for side in size]
        if padded * new[0] * new[1] > self.most_pixels:
            beta = math.sqrt(count * height * width / self.most_pixels)
            new = [max(factor, math.floor(side / beta / factor) * factor) for side in size]
        elif padded * new[0] * new[1] < self.fewest_pixels:
            beta = math.sqrt(self.fewest_pixels / (count * height * width))
            new = [math.ceil(side * beta / factor) * factor for side in size]
        return new[0], new[1]


class Frames(Multiples, frozen=True, tag="frames"):
    """A video: each tile has `per_tile` frames, and all frames have one size (Qwen-VL)."""

    modality: ClassVar[str] = "video"
    per_tile: int
    counts_frames: bool = False
    """Whether the limits hold for the pixels of all frames together (Qwen3-VL)."""

    def layout(self, size: Size) -> Layout:
        return self.of_frames(size, 1)

    def of_frames(self, size: Size, count: int) -> Layout:
        """The tiles of a video of `count` frames, of which the last one is repeated until a tile is
        full. Raises RequestError as `layout` does."""
        computed = padded = 1
        if self.counts_frames:
            scale = max(self.factor / min(size), 1.0)
            size = int(size[0] * scale), int(size[1] * scale)
            computed = max(count, self.per_tile)
            padded = round(computed / self.per_tile) * self.per_tile
        tiles = (self._size(size, computed, padded),) * -(-count // self.per_tile)
        return Layout(tiles, frames=self.per_tile, num_given=count)

    def most_squares(self, count: int = 1) -> int:
        """Most squares of a tile."""
        return super().most_squares(self.per_tile if self.counts_frames else count)


class LongestEdge(OneTile, frozen=True, tag="longest_edge"):
    """One tile that fits into a square, whose sides are multiples of a patch (Pixtral)."""

    most: Size
    patch: Size

    def _size(self, size: Size) -> Size:
        _check_ratio(size)
        height, width = size
        ratio = max(height / self.most[0], width / self.most[1])
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        height, width = max(1, height), max(1, width)
        return _multiple(height, self.patch[0]), _multiple(width, self.patch[1])


class MostTokens(OneTile, frozen=True, tag="most_tokens"):
    """One tile of squares, as many as a limit allows in the picture's ratio (Gemma 4)."""

    side: int
    most: int
    """Squares; at least 2, so that a square picture has one."""

    def _size(self, size: Size) -> Size:
        (height, width), side = size, self.side
        factor = math.sqrt(self.most * side * side / (height * width))
        rows, columns = (math.floor(factor * one / side) for one in size)
        if rows == 0:
            rows, columns = 1, min(width // height, self.most)
        elif columns == 0:
            rows, columns = min(height // width, self.most), 1
        return rows * side, columns * side


AnyResizing = (
    Whole | Cropped | SquareTiles | RatioTiles | GridTiles | Multiples | Frames | LongestEdge
    | MostTokens
)  # fmt: skip


def _check_ratio(size: Size) -> None:
    if max(size) > _MAX_RATIO * min(size):
        raise RequestError(
            f"an image of {size[1]} x {size[0]} pixels is too narrow: the longer side may be at "
            f"most {_MAX_RATIO} times as long as the shorter one"
        )


def _within(size: Size, outer: Size) -> Size:
    """The largest size of this ratio in `outer`."""
    height, width = size
    if outer[1] / width < outer[0] / height:
        return min(math.ceil(height * (outer[1] / width)), outer[0]), outer[1]
    return outer[0], min(math.ceil(width * (outer[0] / height)), outer[1])


def _margins(size: Size, grid: Size) -> tuple[int, int]:
    """Rows and columns of patches at each edge of a grid that have padding alone."""
    height, width = size
    if width / height > grid[1] / grid[0]:
        return (grid[0] - int(round(height * (grid[1] / width), 7))) // 2, 0
    return 0, (grid[1] - int(round(width * (grid[0] / height), 7))) // 2


def _multiple(length: int, of: int) -> int:
    return math.ceil(length / of) * of


def _with_longest(size: Size, longest: int) -> Size:
    """The size whose longer side is `longest`, the other one even."""
    height, width = size
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    return max(height, 1), max(width, 1)


def _below(size: Size, limit: int) -> Size:
    height, width = size
    ratio = width / height
    if width >= height and width > limit:
        width, height = limit, int(limit / ratio)
    elif height > width and height > limit:
        height, width = limit, int(limit * ratio)
    return max(height, 1), max(width, 1)


@cache
def _grids(fewest: int, most: int) -> list[tuple[int, int]]:
    """Pairs (columns, rows) with `fewest` to `most` tiles, small ones first."""
    sides = range(1, most + 1)
    found = [(c, r) for c in sides for r in sides if fewest <= c * r <= most]
    return sorted(found, key=lambda grid: grid[0] * grid[1])


def _closest_grid(size: Size, tile: Size, fewest: int, most: int) -> tuple[int, int]:
    height, width = size
    ratio, area = width / height, width * height
    best, best_difference = (1, 1), math.inf
    for columns, rows in _grids(fewest, most):
        difference = abs(ratio - columns / rows)
        if difference < best_difference:
            best, best_difference = (columns, rows), difference
        elif difference == best_difference and area > 0.5 * tile[0] * tile[1] * columns * rows:
            best = columns, rows
    return best
