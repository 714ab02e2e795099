"""`ImageManager`: tiles between steps, shared results, tenants, failures. No model, no Pillow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.core.images.cache import EncoderCache
from quire.core.images.manager import ImageManager
from quire.errors import BackendError
from quire.images.rules import Layout
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.protocol.images import ImageInput
from quire.protocol.input_rows import InputRows

_WIDTH = 3
"""Numbers of a row."""


def _rows(pixels: bytes) -> bytes:
    """Two rows of a tile, by hand."""
    return np.array([[pixels[0]] * _WIDTH, [pixels[-1]] * _WIDTH], "<f4").tobytes()


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
        arrival_time=0.0, input_rows=given, images=made, cache_salt=salt,
    )  # fmt: skip


def _check(request: EngineCoreRequest, images: tuple[tuple[int, int], ...]) -> None:
    """Each entry has the rows of its tile."""
    assert request.images == []
    wanted = [_rows(bytes([number + tile] * 12)) for number, tiles in images
              for tile in range(tiles)]  # fmt: skip
    assert [one.data for one in request.input_rows] == wanted


def test_a_tile_at_a_time_with_company_and_all_without() -> None:
    calls: list[bytes] = []

    def encode(pixels: bytes, height: int, width: int) -> bytes:
        assert len(pixels) == height * width * 3
        calls.append(pixels)
        return _rows(pixels)

    manager = ImageManager(encode, EncoderCache(1 << 20))
    manager.add(_request("a", (10, 3)))
    for done in (1, 2):
        assert not manager.advance(has_others=True).ready
        assert len(calls) == done
    [ready] = manager.advance(has_others=True).ready
    _check(ready, ((10, 3),))
    manager.add(_request("b", (20, 2), (10, 3), (20, 2)))
    [ready] = manager.advance(has_others=False).ready
    _check(ready, ((20, 2), (10, 3), (20, 2)))
    assert len(calls) == 5  # picture 10 was cached, and 20 is encoded once
    assert not manager.num_waiting


def test_tenants_share_nothing_and_the_cache_is_bounded() -> None:
    count = [0]

    def encode(pixels: bytes, height: int, width: int) -> bytes:
        del height, width
        count[0] += 1
        return _rows(pixels)

    cache = EncoderCache(2 * 4 * 2 * _WIDTH)
    manager = ImageManager(encode, cache)
    for salt, wanted in (("x/1", 1), ("x/2", 1), ("y", 2), (None, 3), ("y", 3), ("x", 4)):
        manager.add(_request("r", (1, 1), salt=salt))
        assert manager.advance(has_others=False).ready
        assert count[0] == wanted, salt
        assert cache.num_bytes <= cache.max_bytes
        assert len(cache) <= 2


def test_a_failure_ends_its_request_alone_and_an_abort_is_forgotten() -> None:
    def encode(pixels: bytes, height: int, width: int) -> bytes:
        del height, width
        if pixels[0] == 13:
            raise BackendError("a number that is not finite")
        return _rows(pixels)

    manager = ImageManager(encode, EncoderCache(1 << 20))
    manager.add(_request("gone", (5, 4)))
    manager.advance(has_others=True)
    manager.abort("gone")
    manager.add(_request("bad", (12, 3)))
    manager.add(_request("good", (30, 1)))
    news = manager.advance(has_others=False)
    assert [one.request_id for one in news.failed] == ["bad"]
    assert news.failed[0].finish_reason == "error"
    [ready] = news.ready
    _check(ready, ((30, 1),))


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_right_in_random_company(seed: int) -> None:
    rng = random.Random(seed)
    manager = ImageManager(lambda pixels, _h, _w: _rows(pixels), EncoderCache(200))
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
            manager.abort(str(rng.randrange(number + 1)))
        for _ in range(rng.randrange(4)):
            for ready in manager.advance(has_others=rng.random() < 0.7).ready:
                _check(ready, wanted[ready.request_id])
    while manager.num_waiting:
        for ready in manager.advance(has_others=True).ready:
            _check(ready, wanted[ready.request_id])
