"""`ImageManager`: encoding between steps, shared results, tenants, failures. No model."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire.core import images
from quire.core.images import ImageManager, TileEncoder
from quire.errors import BackendError
from quire.images.cache import PictureCache
from quire.images.rules import Layout
from quire.params import SamplingParams
from quire.protocol import CacheScope, EngineCoreRequest, ImageInput, InputRows

_WIDTH = 3
"""Numbers of a row."""


def _rows(pixels: bytes) -> bytes:
    """Two rows of a tile, by hand."""
    return np.array([[pixels[0]] * _WIDTH, [pixels[-1]] * _WIDTH], "<f4").tobytes()


class _Encoder(TileEncoder):
    """Gives the rows of a tile at the second call, after one without result. Counts tiles."""

    def __init__(self) -> None:
        self.num_tiles = 0
        self._pixels = b""
        self._has_waited = False

    def begin(self, pixels: bytes, height: int, width: int) -> None:
        assert len(pixels) == height * width * 3
        self._pixels, self._has_waited = pixels, False
        self.num_tiles += 1

    def advance(self, seconds: float) -> bytes | None:
        assert seconds >= 0.0
        if self._pixels[0] == 13:
            raise BackendError("a number that is not finite")
        if not self._has_waited:
            self._has_waited = True
            return None
        pixels, self._pixels = self._pixels, b""
        return _rows(pixels)


def _image(number: int, tiles: int, first: int) -> ImageInput:
    pixels = bytes(number + tile for tile in range(tiles) for _ in range(12))
    return ImageInput(bytes([number]) * 32, Layout(((2, 2),) * tiles), pixels, first, tiles)


def _request(name: str, *images: tuple[int, int], salt: str | None = None) -> EngineCoreRequest:
    """A request with pictures of (number, tiles); a tile has two rows, with a gap between tiles."""
    given: list[InputRows] = []
    made = []
    for number, tiles in images:
        made.append(_image(number, tiles, len(given)))
        for tile in range(tiles):
            first = 1 + 3 * len(given)
            given.append(InputRows(first, 2, bytes([number, tile])))
    return EngineCoreRequest(
        request_id=name, prompt_token_ids=[0] * 100, sampling_params=SamplingParams(),
        arrival_time=0.0, input_rows=given, images=made, scope=CacheScope(salt),
    )  # fmt: skip


def _check(request: EngineCoreRequest, images: tuple[tuple[int, int], ...]) -> None:
    """Each entry has the rows of its tile."""
    assert request.images == []
    wanted = [_rows(bytes([number + tile] * 12)) for number, tiles in images
              for tile in range(tiles)]  # fmt: skip
    assert [one.data for one in request.input_rows] == wanted


def test_a_call_at_a_time_without_time_and_all_with_it() -> None:
    encoder = _Encoder()
    manager = ImageManager(encoder, PictureCache(1 << 20))
    manager.add(_request("a", (10, 3)))
    for _ in range(3 * 3 - 1):  # each tile begins, waits, and is done
        assert not manager.encode(0.0).ready
    [ready] = manager.encode(0.0).ready
    _check(ready, ((10, 3),))
    assert encoder.num_tiles == 3
    manager.add(_request("b", (20, 2), (10, 3), (20, 2)))
    [ready] = manager.encode(60.0).ready
    _check(ready, ((20, 2), (10, 3), (20, 2)))
    assert encoder.num_tiles == 5  # picture 10 was cached, and 20 is encoded once
    assert not manager.num_waiting


def test_tenants_share_nothing_and_the_cache_is_bounded() -> None:
    encoder, cache = _Encoder(), PictureCache(2 * 4 * 2 * _WIDTH)
    manager = ImageManager(encoder, cache)
    for salt, wanted in (("x/1", 1), ("x/2", 1), ("y", 2), (None, 3), ("y", 3), ("x", 4)):
        manager.add(_request("r", (1, 1), salt=salt))
        assert manager.encode(60.0).ready
        assert encoder.num_tiles == wanted, salt
        assert cache.num_bytes <= cache.max_bytes
        assert len(cache) <= 2


def test_requests_share_the_rows_of_one_picture() -> None:
    manager = ImageManager(_Encoder(), PictureCache(1 << 20))
    for name in "ab":
        manager.add(_request(name, (1, 1)))
    first, second = manager.encode(60.0).ready
    assert first.input_rows[0].data is second.input_rows[0].data


def test_a_failure_ends_its_request_alone_and_an_abort_is_forgotten() -> None:
    manager = ImageManager(_Encoder(), PictureCache(1 << 20))
    manager.add(_request("gone", (5, 4)))
    manager.encode(0.0)
    manager.abort(["gone"])
    manager.add(_request("bad", (12, 3)))
    manager.add(_request("good", (30, 1)))
    news = manager.encode(60.0)
    assert [one.request_id for one in news.failed] == ["bad"]
    assert news.failed[0].finish_reason == "error"
    [ready] = news.ready
    _check(ready, ((30, 1),))


def test_new_weights_begin_all_pictures_again() -> None:
    encoder = _Encoder()
    manager = ImageManager(encoder, PictureCache(1 << 20))
    manager.add(_request("done", (1, 1)))
    assert manager.encode(60.0).ready
    manager.add(_request("a", (1, 1), (40, 2)))
    while encoder.num_tiles < 3:
        assert not manager.encode(0.0).ready
    manager.forget()
    assert not len(manager.cache)
    [ready] = manager.encode(60.0).ready
    _check(ready, ((1, 1), (40, 2)))
    assert encoder.num_tiles == 6


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_right_in_random_company(seed: int) -> None:
    rng = random.Random(seed)
    manager = ImageManager(_Encoder(), PictureCache(200))
    wanted: dict[str, tuple[tuple[int, int], ...]] = {}
    for number in range(60):
        name = str(number)
        wanted[name] = tuple(
            (10 * rng.randrange(1, 8), rng.randrange(1, 4)) for _ in range(rng.randrange(1, 4))
        )
        # Equal numbers with other tiles are other pictures.
        images = tuple((one + tiles, tiles) for one, tiles in wanted[name])
        wanted[name] = images
        manager.add(_request(name, *images, salt=rng.choice([None, "a", "b/c"])))
        if rng.random() < 0.2:
            manager.abort([str(rng.randrange(number + 1))])
        for _ in range(rng.randrange(4)):
            for ready in manager.encode(rng.choice([0.0, 0.0, 60.0])).ready:
                _check(ready, wanted[ready.request_id])
    while manager.num_waiting:
        for ready in manager.encode(0.0).ready:
            _check(ready, wanted[ready.request_id])


def test_urgent_pictures_pass_others_whose_tiles_are_kept() -> None:
    encoder = _Encoder()
    manager = ImageManager(encoder, PictureCache(1 << 20), lambda request: request.priority)
    low, urgent = _request("low", (10, 3)), _request("urgent", (20, 1))
    low.priority = 5
    manager.add(low)
    for _ in range(4):  # one tile is done, and the next one has begun
        assert not manager.encode(0.0).ready
    manager.add(urgent)
    for _ in range(2):
        assert not manager.encode(0.0).ready
    [ready] = manager.encode(0.0).ready
    assert ready.request_id == "urgent"
    _check(ready, ((20, 1),))
    [ready] = manager.encode(60.0).ready
    _check(ready, ((10, 3),))
    assert encoder.num_tiles == 5  # the tile that was interrupted is encoded again
    assert not manager._interrupted


def test_interrupted_pictures_of_aborted_requests_are_forgotten() -> None:
    manager = ImageManager(_Encoder(), PictureCache(1 << 20), lambda request: request.priority)
    low = _request("low", (10, 3))
    low.priority = 5
    manager.add(low)
    manager.encode(0.0)
    manager.add(_request("urgent", (20, 1)))
    manager.encode(0.0)
    assert len(manager._interrupted) == 1
    manager.abort(["low"])
    assert manager.encode(60.0).ready
    assert not manager._interrupted


@pytest.mark.parametrize(("num_generating", "is_first"), [(0, True), (7, True), (8, False)])
def test_sounds_are_encoded_first_while_few_requests_generate(
    num_generating: int, is_first: bool
) -> None:
    running = [SimpleNamespace(is_generating=number < num_generating) for number in range(20)]
    scheduler: Any = SimpleNamespace(states=SimpleNamespace(running=running))
    seconds = images._seconds_of_windows(scheduler)
    assert seconds == (images._WINDOW_S if is_first else images._ALONE_S)
    assert images._WINDOW_S > images._ALONE_S
