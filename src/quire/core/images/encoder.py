"""`image_stage`: the stage of pictures, whose encoder the workers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.config.records import EngineConfig
from quire.core.capability import Capability
from quire.core.images.manager import ImageManager, TileEncoder
from quire.errors import RequestError
from quire.executor.base import Executor
from quire.images.cache import PictureCache
from quire.protocol import EngineCoreRequest
from quire.scheduler.queue import level_of

if TYPE_CHECKING:
    from quire.scheduler import Scheduler

_SHARE_OF_A_STEP = 0.3
"""Share of the time of a step without prompts that the encoder has between two steps."""
_ALONE_S = 0.1
"""Seconds that the encoder has if no request waits for its next token."""


class WorkerEncoder(TileEncoder):
    """Calls the workers between two plans."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, pixels: bytes, height: int, width: int) -> None:
        self._executor.call("begin_tile", pixels, height, width)

    def advance(self, seconds: float) -> bytes | None:
        rows: bytes | None = self._executor.call("encode_tile", seconds)[0]
        return rows


class _NoImages(Capability):
    """Refuses pictures."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {"reset_encoder_cache": lambda: None}

    def check(self, request: EngineCoreRequest) -> None:
        if request.images:
            raise RequestError("this engine takes no images and no audio")


def image_stage(config: EngineConfig, executor: Executor, scheduler: Scheduler) -> Capability:
    """The stage in which requests wait until their pictures are encoded."""
    if config.model.images is None:
        return _NoImages()
    cache: PictureCache[bytes] = PictureCache(config.model.images.cache_bytes)
    level = partial(level_of, config.scheduler.policy)
    return ImageManager(WorkerEncoder(executor), cache, level, partial(_seconds, scheduler))


def _seconds(scheduler: Scheduler) -> float:
    """Time for the encoder between two steps."""
    if any(one.is_generating for one in scheduler.states.running):
        return _SHARE_OF_A_STEP * scheduler.pacing.costs.generating_s
    return _ALONE_S
