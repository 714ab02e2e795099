"""`VisionModel`: what a multimodal checkpoint does with a picture, or with a sound.

The front end reads `resizing` and `expansion`, the worker runs the programs. Knows no requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.images.rules import Frames, Layout, Resizing, Rules, Size

if TYPE_CHECKING:
    from quire.program import Program, Tensor

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TileStep:
    """The input of a tower for one tile; the arrays are those of `StepBatch`."""

    rows: Floats
    """[T, width]"""
    num_skipped: int = 0
    """Rows at the beginning whose results are not used: that of the class token."""
    axis_positions: Ints | None = None
    spans: Ints | None = None


class Patching(ABC):
    """The conversion of a tile to rows of the tower, and of the tower's rows to rows of the
    text."""

    tables: tuple[Tensor, ...] = ()
    """Tensors of the checkpoint that `step`, `merged` and `ordered` read."""
    most_patches: int
    """Most rows of the tower for a tile."""
    most_rows: int
    """Most rows of the text for a tile."""
    sees_itself: bool = False
    """Whether the rows of a picture see each other in the text model, not only earlier ones."""

    @abstractmethod
    def num_rows(self, size: Size) -> int:
        """Rows of the text for a tile."""

    def stem_step(self, values: Floats) -> TileStep:
        """The stem's input for the spectrum [frames, bins] of a tile."""
        raise NotImplementedError

    @abstractmethod
    def step(self, values: Floats, tables: Sequence[Floats]) -> TileStep:
        """The tower's input for the normalised pixels [height, width, 3] of a tile; of a video,
        [frames, height, width, 3]; of a sound, for the results of the stem."""

    @abstractmethod
    def merged(self, hidden: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        """The projector's input rows, made of the tower's results."""

    def ordered(self, rows: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        """The projector's results in the order of the text."""
        del size, tables
        return rows

    def num_tile_rows(self, layout: Layout) -> int:
        """Rows of all tiles."""
        return sum(self.num_rows(size) for size in layout.sizes)

    def num_picture_rows(self, layout: Layout) -> int:
        """Rows of the text for a picture."""
        order = self.order(layout)
        return self.num_tile_rows(layout) if order is None else len(order)

    def order(self, layout: Layout) -> Ints | None:
        """Which of the rows of all tiles the text has, one after the other; None: all in order."""
        del layout
        return None

    def grid(self, size: Size) -> Size | None:
        """The grid whose places are the positions of a tile's rows; None: the rows have positions
        like other tokens."""
        del size
        return None


@dataclass(frozen=True, slots=True)
class ClassRow:
    """The class token of a tower. Names are those of tensors, relative to the tower."""

    token: str
    positions: str
    patch_bias: str
    """The bias of the patches, which a row of zeros becomes; "": there is none."""


@dataclass(frozen=True, slots=True)
class VideoForm:
    """Settings for videos. The fields are those of `VisionModel`."""

    resizing: Frames
    placeholder: str
    row_token: str
    row_token_id: int
    expansion: Callable[[Layout], str]
    frame_distance: float
    """Positions from a tile to the next one on the axis of time; 0: each tile has its own rows."""
    kind: str = "video"


@dataclass(frozen=True)
class VisionModel:
    """The encoder of one checkpoint. A tile is encoded by itself: its patches are the rows of one
    step of the tower, and `patching` joins rows for the step of the projector, which has the
    result."""

    family: str
    resizing: Rules
    patching: Patching
    tower: Program
    projector: Program | None
    """None: the results of the tower are the rows."""
    placeholder: str
    """Placeholder of a picture in a prompt; chat templates write it."""
    row_token: str
    """The token that `expansion` has for each row."""
    row_token_id: int
    expansion: Callable[[Layout], str]
    """Text that replaces the placeholder, by the tiles of the picture."""
    prefixes: tuple[str, ...]
    """Possible prefixes of the tower's tensors in the checkpoint."""
    projector_prefixes: tuple[str, ...]
    class_row: ClassRow | None = None
    video: VideoForm | None = None
    """None: it takes no videos."""
    stem: Program | None = None
    """Program that is computed before the tower, with at most two rows for each of the tower's;
    None: there is none. `prefixes` holds for its tensors, too."""
    transcription: str = ""
    """The prompt that asks for the words of a sound, with `{language}` where its language is named;
    "": the model was not trained for it."""
    languages: frozenset[str] = frozenset()
    """The codes of languages that such a prompt may name."""
    is_source: bool = False
    """Whether its rows are the first positions of a request, for a decoder with attention to them
    (`SourcesEnd`). A prompt then has no placeholder."""
    settings: frozenset[str] = frozenset()
    """The settings of the image processor that were given and are read."""

    @property
    def kind(self) -> str:
        """Modality of the model's inputs besides videos."""
        return self.resizing.modality

    @property
    def row_width(self) -> int:
        """Numbers of a row of the text model."""
        return (self.projector or self.tower).result_width

    def num_rows(self, layout: Layout) -> int:
        """Rows of the text model that a picture becomes."""
        return self.patching.num_picture_rows(layout)

    def tiles(self, layout: Layout, pixels: bytes) -> list[NDArray[np.uint8]]:
        """The tiles of a picture, each [height, width, 3]."""
        found, begin = [], 0
        for size in layout.sizes:
            count = prod(size) * 3
            flat = np.frombuffer(pixels, np.uint8, count, begin)
            found.append(flat.reshape(*size, 3))
            begin += count
        return found

    def tile(self, data: bytes, size: Size) -> NDArray[np.uint8] | Floats:
        """A tile as the encoder takes it: RGB bytes [frames, *size, 3]; of other modalities float32
        of this size."""
        if isinstance(self.resizing, Resizing):
            return np.frombuffer(data, np.uint8).reshape(-1, *size, 3)
        return np.frombuffer(data, "<f4").reshape(size)


def normalised(tile: NDArray[np.uint8], resizing: Resizing) -> Floats:
    """The pixels [..., 3] as the model was trained on them, computed as transformers does: each
    channel has a table of 256 numbers. In memory the channels lie one after the other, as those of
    a patch do."""
    levels = (np.arange(256, dtype=np.float64) * resizing.rescale).astype(np.float32)
    mean, std = np.array(resizing.mean, np.float32), np.array(resizing.std, np.float32)
    found = np.empty((3, *tile.shape[:-1]), np.float32)
    for channel in range(3):
        table = (levels - mean[channel]) / std[channel]
        np.take(table, tile[..., channel], out=found[channel], mode="clip")
    return np.moveaxis(found, 0, -1)
