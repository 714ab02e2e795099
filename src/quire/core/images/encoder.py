"""`WorkerEncoder`: the image encoder of the workers, as the `ImageManager` calls it."""

from __future__ import annotations

from functools import partial

from quire.config.records import EngineConfig
from quire.core.images.manager import ImageManager, TileEncoder
from quire.executor.base import Executor
from quire.images.cache import PictureCache
from quire.scheduler.queue import level_of


class WorkerEncoder(TileEncoder):
    """Calls the workers between two plans."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, pixels: bytes, height: int, width: int) -> None:
        self._executor.call("begin_tile", pixels, height, width)

    def advance(self, seconds: float) -> bytes | None:
        rows: bytes | None = self._executor.call("encode_tile", seconds)[0]
        return rows


def image_manager(config: EngineConfig, executor: Executor) -> ImageManager | None:
    """None: the engine takes no images."""
    if config.model.images is None:
        return None
    cache: PictureCache[bytes] = PictureCache(config.model.images.cache_bytes)
    level = partial(level_of, config.scheduler.policy)
    return ImageManager(WorkerEncoder(executor), cache, level)
