"""`ImageManager`: lets requests wait until their pictures or sounds are encoded.

The encoder runs between two steps for a limited time, so that a picture delays the next token of
other requests by that time alone, however large it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import numpy as np

from quire.config.records import EngineConfig
from quire.core.capability import Capability, Passed, Stage
from quire.errors import BackendError
from quire.executor.base import Executor
from quire.images.cache import PictureCache
from quire.log import get_logger
from quire.protocol import (
    EngineCoreOutput,
    EngineCoreRequest,
    ImageInput,
    InputRows,
    SchedulerStats,
)
from quire.scheduler.request import level_of

if TYPE_CHECKING:
    from quire.scheduler import Scheduler

logger = get_logger(__name__)


class TileEncoder(Protocol):
    """Encodes a tile at a time. Both methods raise BackendError."""

    def begin(self, pixels: bytes, height: int, width: int) -> None:
        """Begins with a tile: RGB bytes of one frame or several, or a spectrum. A tile that is not
        done is dropped."""

    def advance(self, seconds: float) -> bytes | None:
        """Encodes for about `seconds`. Returns the rows, float32, when they are done, None
        before."""


@dataclass(slots=True)
class _Picture:
    """A picture that is being encoded."""

    image: ImageInput
    rows: list[bytes] = field(default_factory=list)
    """The rows of the tiles that are done."""
    num_pixel_bytes: int = 0
    """Bytes of these tiles."""
    has_begun: bool = False
    """Whether the encoder has the next tile."""


class ImageManager(Stage):
    """Encodes the pictures of waiting requests."""

    def __init__(
        self,
        encoder: TileEncoder,
        cache: PictureCache[bytes],
        level_of: Callable[[EngineCoreRequest], float] = lambda _: 0,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`seconds`: time that the encoder has between two steps."""
        super().__init__(level_of)
        self.cache = cache
        self._encoder = encoder
        self._seconds = seconds
        self._rows: dict[str, dict[bytes, bytes]] = {}
        """By request, the rows of its pictures that are there."""
        self._current: _Picture | None = None
        """The picture of which the encoder has a tile."""
        self._interrupted: dict[bytes, _Picture] = {}
        """By digest, pictures that others have passed; their tiles that are done are kept."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {"reset_encoder_cache": self.cache.clear, "drop_encoded_picture": self.cache.drop}

    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        return bool(request.images)

    def add(self, request: EngineCoreRequest) -> None:
        super().add(request)
        self._rows[request.request_id] = {}

    def abort(self, request_ids: Sequence[str]) -> None:
        super().abort(request_ids)
        for request_id in request_ids:
            self._rows.pop(request_id, None)

    def report(self, stats: SchedulerStats) -> None:
        stats.mm_cache = (self.cache.num_queries, self.cache.num_hits)

    def forget(self) -> None:
        """Drops all rows; pictures begin again."""
        self.cache.clear()
        self._current = None
        self._interrupted.clear()
        for rows in self._rows.values():
            rows.clear()

    def advance(self, *, is_idle: bool) -> Passed:
        del is_idle
        return self.encode(self._seconds())

    def encode(self, compute_s: float) -> Passed:
        """Encodes for about `compute_s`. Returns the requests that may go on, and those whose
        pictures cannot be encoded."""
        news, end = Passed(), time.perf_counter() + compute_s
        may_encode = True
        for request in self._in_order():
            try:
                while (image := self._next_missing(request)) is not None and may_encode:
                    self._encode(request, image, max(0.0, end - time.perf_counter()))
                    may_encode = time.perf_counter() < end
            except BackendError as error:
                self._current = None
                self.abort([request.request_id])
                news.failed.append(_failed(request, error))
                continue
            if image is not None:
                break  # later requests wait, so that the first is done as soon as possible
            news.ready.append(_with_rows(request, self._rows[request.request_id]))
            self.abort([request.request_id])
        if self._interrupted:
            wanted = {image.digest for one in self._waiting.values() for image in one.images}
            for digest in self._interrupted.keys() - wanted:
                del self._interrupted[digest]
        return news

    def _next_missing(self, request: EngineCoreRequest) -> ImageInput | None:
        """The first of the request's pictures without rows; those in the cache are taken."""
        found = self._rows[request.request_id]
        for image in request.images:
            if image.digest in found:
                continue
            if self._current is not None and self._current.image.digest == image.digest:
                return image
            rows = self.cache.get(request.scope.tenant, image.digest)
            if rows is None:
                return image
            found[image.digest] = rows
        return None

    def _encode(self, request: EngineCoreRequest, image: ImageInput, seconds: float) -> None:
        """A part of the next tile. To begin with a tile is a part of its own."""
        current = self._current
        if current is None or current.image.digest != image.digest:
            if current is not None:
                current.has_begun = False  # the encoder drops its tile
                self._interrupted[current.image.digest] = current
            current = self._interrupted.pop(image.digest, None) or _Picture(image)
            self._current = current
        if not current.has_begun:
            tile, begin = len(current.rows), current.num_pixel_bytes
            (height, width), count = image.layout.sizes[tile], image.layout.num_bytes(tile)
            self._encoder.begin(image.pixels[begin : begin + count], height, width)
            current.has_begun = True
            return
        rows_of_tile = self._encoder.advance(seconds)
        if rows_of_tile is None:
            return
        current.num_pixel_bytes += image.layout.num_bytes(len(current.rows))
        current.rows.append(rows_of_tile)
        current.has_begun = False
        if len(current.rows) == len(image.layout.sizes):
            rows = _ordered(b"".join(current.rows), image)
            self.cache.put(request.scope.tenant, image.digest, rows, len(rows))
            self._rows[request.request_id][image.digest] = rows
            self._current = None


def _ordered(rows: bytes, image: ImageInput) -> bytes:
    """The rows of a picture, of those of its tiles."""
    if not image.order:
        return rows
    table = np.frombuffer(rows, np.uint8).reshape(image.num_tile_rows, -1)
    return table[np.frombuffer(image.order, np.int32)].tobytes()


def _with_rows(request: EngineCoreRequest, rows: dict[bytes, bytes]) -> EngineCoreRequest:
    """The request with the rows of its pictures as data of its `input_rows`, without pixels."""
    given: list[InputRows] = [*request.input_rows]
    for image in request.images:
        data, end = memoryview(rows[image.digest]), image.first_rows + image.num_entries
        entries = range(image.first_rows, end)
        width = len(data) // sum(given[index].count for index in entries)
        begin = 0
        for index in entries:
            size = given[index].count * width
            # One entry has the bytes of the cache themselves, which requests share.
            part = rows[image.digest] if size == len(data) else bytes(data[begin : begin + size])
            given[index] = msgspec.structs.replace(given[index], data=part)
            begin += size
    return msgspec.structs.replace(request, input_rows=given, images=[])


def _failed(request: EngineCoreRequest, error: Exception) -> EngineCoreOutput:
    logger.error("an image or audio of %s could not be encoded: %s", request.request_id, error)
    return EngineCoreOutput(
        request_id=request.request_id, finish_reason="error", error=f"the encoder failed: {error}"
    )


_SHARE_OF_A_STEP = 0.3
"""Share of the time of a step without prompts that the encoder has between two steps."""
_ALONE_S = 0.1
"""Seconds that the encoder has if no request waits for its next token."""
_FEW_REQUESTS = 8
_WINDOW_S = 1.0
"""Seconds that the encoder of sounds has while fewer than `_FEW_REQUESTS` requests generate. A step
reads all weights, so few steps of many requests take less time than many steps of few."""


class WorkerEncoder(TileEncoder):
    """Calls the worker that has the encoder, between two plans."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, pixels: bytes, height: int, width: int) -> None:
        self._executor.call_first("begin_tile", pixels, height, width)

    def advance(self, seconds: float) -> bytes | None:
        rows: bytes | None = self._executor.call_first("encode_tile", seconds)
        return rows


class _NoImages(Capability):
    """Refuses pictures."""

    refused: ClassVar = {"images": "this engine takes no images and no audio"}

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {"reset_encoder_cache": lambda: None}


def image_stage(config: EngineConfig, executor: Executor, scheduler: Scheduler) -> Capability:
    """The stage in which requests wait until their pictures are encoded."""
    if config.model.images is None:
        return _NoImages()
    cache: PictureCache[bytes] = PictureCache(config.model.images.cache_bytes)
    level = partial(level_of, config.scheduler.policy)
    seconds = _seconds_of_windows if config.model.num_sources else _seconds
    return ImageManager(WorkerEncoder(executor), cache, level, partial(seconds, scheduler))


def _seconds(scheduler: Scheduler) -> float:
    """Time for the encoder between two steps."""
    if any(one.is_generating for one in scheduler.states.running):
        return _SHARE_OF_A_STEP * scheduler.pacing.costs.generating_s
    return _ALONE_S


def _seconds_of_windows(scheduler: Scheduler) -> float:
    """Time between two steps for the encoder of a model that has no other requests than sounds."""
    generating = sum(one.is_generating for one in scheduler.states.running)
    return _WINDOW_S if generating < _FEW_REQUESTS else _ALONE_S
