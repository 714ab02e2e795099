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
from quire.images.rules import Frames, Layout, Whole  # noqa: E402

_RULES = Whole(resample=0, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=(4, 6))
"""The pictures here have this size, so that nothing is resized."""
_VIDEO = Frames(
    resample=0, mean=(0.5,) * 3, std=(0.5,) * 3, factor=8, fewest_pixels=64, most_pixels=1 << 20,
    per_tile=2,
)  # fmt: skip


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
    assert found.layout.sizes == ((4, 6),)
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


def _damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    """A file of which some bytes differ, the end is missing, or a part is there twice."""
    cut = rng.random() < 0.3
    damaged = bytearray(whole[: int(rng.integers(1, len(whole) + 1))] if cut else whole)
    end = len(damaged) if rng.random() < 0.5 else min(64, len(damaged))  # the head decides most
    for place in rng.integers(0, end, int(rng.integers(1, 6))):
        damaged[place] = int(rng.integers(0, 256))
    if rng.random() < 0.1:
        first, last = sorted(rng.integers(0, len(damaged), 2).tolist())
        damaged[first:first] = damaged[first:last]
    return bytes(damaged)


_FORMS = ["PNG", "JPEG", "WEBP", "GIF", "BMP"]


@pytest.mark.parametrize(
    ("form", "count"),
    [(one, 40) for one in _FORMS]
    + [pytest.param(one, 5000, marks=pytest.mark.long) for one in _FORMS],
)
def test_damaged_files_give_a_picture_or_an_error(form: str, count: int) -> None:
    rng, num_read = np.random.default_rng(10), 0
    modes = ["RGB", "L", "P", "1", *(["RGBA", "LA"] if form == "PNG" else [])]
    whole = [_file(Image.fromarray(_random(40, 60, 3)).convert(one), form) for one in modes
             if form != "JPEG" or one != "P"]  # fmt: skip
    for _ in range(count):
        with suppress(RequestError):
            data = _damaged(whole[rng.integers(len(whole))], rng)
            assert len(picture_of(data, _RULES).pixels) == 4 * 6 * 3
            num_read += 1
    assert num_read < count  # each piece of a PNG file has a checksum


@pytest.mark.parametrize(
    ("form", "count"),
    [("GIF", 30), ("WEBP", 30), *(pytest.param(one, 2500, marks=pytest.mark.long)
                                  for one in ("GIF", "WEBP"))],
)  # fmt: skip
def test_damaged_animations_give_a_video_or_an_error(form: str, count: int) -> None:
    rng, num_read = np.random.default_rng(11), 0
    frames = [Image.fromarray(one) for one in _random(5, 16, 24, 3)]
    whole = _file(frames[0], form, save_all=True, append_images=frames[1:])
    assert picture_of(whole, _VIDEO).layout == Layout(((16, 24),) * 3, frames=2, num_given=5)
    for _ in range(count):
        with suppress(RequestError):
            video = picture_of(_damaged(whole, rng), _VIDEO)
            tiles = range(len(video.layout.sizes))
            assert len(video.pixels) == sum(map(video.layout.num_bytes, tiles))
            num_read += 1
    assert 0 < num_read < count


def test_a_video_has_frames_of_one_size_and_not_too_many() -> None:
    frames = [_file(Image.fromarray(one)) for one in _random(3, 16, 24, 3)]
    found = picture_of(frames[0], _VIDEO, frames[1:])
    pixels = np.frombuffer(found.pixels, np.uint8).reshape(4, 16, 24, 3)
    assert np.array_equal(pixels[:3], _random(3, 16, 24, 3))
    assert np.array_equal(pixels[3], pixels[2])  # the last tile is filled up
    other = _file(Image.fromarray(_random(16, 32, 3)))
    for more, message in (
        ([other], "one size: frame 1 has 32 x 16"),
        ([b""], "must be a file of type"),
        (frames * 342, "at most 1024 frames"),
    ):
        with pytest.raises(RequestError, match=message):
            picture_of(frames[0], _VIDEO, more)
    for data in (b"\0\0\0\x20ftypisom" + bytes(50), b"\x1aE\xdf\xa3" + bytes(50)):
        with pytest.raises(RequestError, match="containers such as mp4 cannot be decoded"):
            picture_of(data, _VIDEO)
    large = Frames(
        resample=0, mean=(0.5,) * 3, std=(0.5,) * 3, factor=8, fewest_pixels=1 << 24,
        most_pixels=1 << 26, per_tile=2,
    )  # fmt: skip
    with pytest.raises(RequestError, match="pixels after resizing"):
        picture_of(frames[0], large, frames * 4)


def test_pixels_of_an_animation_are_counted_before_they_are_decoded() -> None:
    frames = [Image.new("L", (16, 16), one) for one in range(5)]
    whole = _file(frames[0], "GIF", save_all=True, append_images=frames[1:])
    large = whole[:6] + struct.pack("<2H", 8000, 8000) + whole[10:]
    with pytest.raises(RequestError, match="5 frames of 8000 x 8000 has 320000000 pixels"):
        picture_of(large, _VIDEO)


def test_a_frame_of_a_gif_that_is_larger_than_the_first_is_not_decoded() -> None:
    frames = [Image.new("L", (16, 16), one) for one in (1, 2)]
    whole = _file(frames[0], "GIF", save_all=True, append_images=frames[1:])
    second = whole.rindex(struct.pack("<4H", 0, 0, 16, 16))
    large = whole[:second] + struct.pack("<4H", 0, 0, 60000, 60000) + whole[second + 8 :]
    with pytest.raises(RequestError, match="60000 x 60000 pixels is too large"):
        picture_of(large, _VIDEO)


def test_scans_of_a_jpeg_are_counted_before_they_are_decoded() -> None:
    whole = _file(Image.new("L", (6, 4), 128), "JPEG", progressive=True)
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    assert len(picture_of(whole[:-2] + scan * 50 + whole[-2:], _RULES).pixels) == 4 * 6 * 3
    with pytest.raises(RequestError, match="at most 100 scans"):
        picture_of(whole[:-2] + scan * 100 + whole[-2:], _RULES)


def test_tiff_is_not_decoded() -> None:
    with pytest.raises(RequestError, match="must be a file of type"):
        picture_of(_file(Image.new("RGB", (6, 4)), "TIFF"), _RULES)
