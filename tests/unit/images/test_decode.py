"""Files of all kinds, whole and damaged, through the child process."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from quire.errors import RequestError  # noqa: E402
from quire.images.job import MAX_PIXELS  # noqa: E402
from quire.images.picture import picture_of  # noqa: E402
from quire.images.rules import Whole  # noqa: E402

_RULES = Whole(resample=0, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=(4, 6))
"""The pictures here have this size, so that nothing is resized."""


def _file(image: Any, form: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


def _pixels(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(picture_of(data, _RULES).pixels, np.uint8).reshape(4, 6, 3)


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(9).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_lossless_files_keep_their_pixels(form: str) -> None:
    wanted = _random(4, 6, 3)
    more = {"lossless": True} if form == "WEBP" else {}
    assert np.array_equal(_pixels(_file(Image.fromarray(wanted), form, **more)), wanted)


def test_modes_become_rgb() -> None:
    grey = _random(4, 6)
    assert np.array_equal(_pixels(_file(Image.fromarray(grey)))[..., 1], grey)
    deep = Image.fromarray(grey.astype(np.uint16) * 256 + 77)
    assert np.array_equal(_pixels(_file(deep))[..., 0], grey)
    clear = Image.fromarray(np.dstack([_random(4, 6, 3), np.zeros((4, 6), np.uint8)]))
    assert _pixels(_file(clear)).min() == 255
    palette = Image.fromarray(_random(4, 6, 3)).quantize(7)
    assert np.array_equal(_pixels(_file(palette)), np.array(palette.convert("RGB")))
    cmyk = Image.new("CMYK", (6, 4), (255, 0, 0, 0))
    assert _pixels(_file(cmyk, "JPEG"))[0, 0].tolist() == pytest.approx([0, 255, 255], abs=3)


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (6, 4), color) for color in ("red", "blue")]
    data = _file(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert _pixels(data)[0, 0].tolist() == [255, 0, 0]


def test_the_orientation_of_a_photo_counts() -> None:
    turned = Image.new("RGB", (4, 6))
    turned.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the picture is at the right of the file's
    found = picture_of(_file(turned, "PNG", exif=exif), _RULES)
    assert found.size == (4, 6)
    assert np.frombuffer(found.pixels, np.uint8).reshape(4, 6, 3)[0, 5].tolist() == [255] * 3


def _bomb(width: int, height: int) -> bytes:
    """A small PNG file with a large picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be a file of type"),
        (b"<svg/>", "must be a file of type"),
        (_bomb(1 << 15, 1 << 15), f"at most {MAX_PIXELS} pixels"),
        (_bomb(1 << 12, 1 << 12), "damaged or cut off"),
    ],
)
def test_files_that_cannot_be_used_have_clear_errors(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        picture_of(data, _RULES)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damaged_files_give_a_picture_or_an_error(form: str) -> None:
    rng = np.random.default_rng(10)
    whole = bytearray(_file(Image.fromarray(_random(40, 60, 3)), form))
    for _ in range(40):
        damaged = bytearray(whole[: int(rng.integers(1, len(whole) + 1))])
        for place in rng.integers(0, len(damaged), 5):
            damaged[place] = int(rng.integers(0, 256))
        with suppress(RequestError):
            assert len(picture_of(bytes(damaged), _RULES).pixels) == 4 * 6 * 3


def test_tiff_is_not_decoded() -> None:
    with pytest.raises(RequestError, match="must be a file of type"):
        picture_of(_file(Image.new("RGB", (6, 4)), "TIFF"), _RULES)
