"""Tiles and pixel values, to the bit, against the image processors of transformers with Pillow."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

from quire.errors import RequestError  # noqa: E402
from quire.images.picture import picture_of  # noqa: E402
from quire.images.rules import (  # noqa: E402
    AnyResizing,
    Cropped,
    Frames,
    GridTiles,
    LongestEdge,
    MostTokens,
    Multiples,
    RatioTiles,
    SquareTiles,
    Whole,
)
from quire.models.media.model import normalised  # noqa: E402

_HALF: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
_CLIP: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}


def _first(found: Any) -> list[Any]:
    return list(found["pixel_values"][0])


def _all(found: Any) -> list[Any]:
    return list(found["pixel_values"])


def _of_patches(found: Any) -> list[Any]:
    """The picture from Qwen's rows of patches of 4 x 4 pixels, in groups of 2 x 2."""
    _, height, width = found["image_grid_thw"][0]
    parts = found["pixel_values"].reshape(height // 2, width // 2, 2, 2, 3, 2, 4, 4)[..., 0, :, :]
    return [parts.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, height * 4, width * 4)]


def _of_places(found: Any) -> list[Any]:
    """The picture from Gemma's rows of patches of 2 x 2 pixels, by their columns and rows."""
    places = found["image_position_ids"][0]
    count = int((places[:, 0] >= 0).sum())
    columns, rows = places[:count].max(0) + 1
    patches = found["pixel_values"][0][:count].reshape(rows, columns, 2, 2, 3)
    assert np.array_equal(places[:count, 1] * columns + places[:count, 0], np.arange(count))
    return [patches.transpose(4, 0, 2, 1, 3).reshape(3, rows * 2, columns * 2)]


_CASES: dict[str, tuple[AnyResizing, str, dict[str, Any], Callable[[Any], list[Any]]]] = {
    "idefics3": (
        SquareTiles(resample=1, longest=128, tile=32, **_HALF),
        "idefics3.image_processing_pil_idefics3:Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}},
        _first,
    ),
    "idefics3-one-tile": (
        SquareTiles(resample=1, longest=128, tile=32, is_split=False, **_HALF),
        "idefics3.image_processing_pil_idefics3:Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32},
         "do_image_splitting": False},
        _first,
    ),
    "gemma3": (
        Whole(resample=2, size=(56, 56), **_HALF),
        "gemma3.image_processing_pil_gemma3:Gemma3ImageProcessorPil",
        {"size": {"height": 56, "width": 56}},
        _all,
    ),
    "clip": (
        Cropped(resample=3, shortest=42, crop=(42, 42), **_CLIP),
        "clip.image_processing_pil_clip:CLIPImageProcessorPil",
        {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}},
        _all,
    ),
    "llava-next": (
        GridTiles(
            resample=3, tile=28, sizes=((28, 56), (56, 28), (56, 56), (84, 28)), side=4, **_CLIP
        ),
        "llava_next.image_processing_pil_llava_next:LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28},
         "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28]]},
        _first,
    ),
    "internvl": (
        RatioTiles(resample=3, tile=(28, 28), fewest=1, most=12, **_CLIP),
        "got_ocr2.image_processing_pil_got_ocr2:GotOcr2ImageProcessorPil",
        {"size": {"height": 28, "width": 28}, "crop_to_patches": True},
        _all,
    ),
    "qwen2-vl": (
        Multiples(resample=3, factor=8, fewest_pixels=256, most_pixels=3200, **_CLIP),
        "qwen2_vl.image_processing_pil_qwen2_vl:Qwen2VLImageProcessorPil",
        {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 3200}},
        _of_patches,
    ),
    "gemma4": (
        MostTokens(resample=3, side=6, most=70, mean=(0.0,) * 3, std=(1.0,) * 3),
        "gemma4.image_processing_pil_gemma4:Gemma4ImageProcessorPil",
        {"patch_size": 2, "pooling_kernel_size": 3, "max_soft_tokens": 70},
        _of_places,
    ),
    "pixtral": (
        LongestEdge(resample=3, most=(96, 96), patch=(16, 16), **_CLIP),
        "pixtral.image_processing_pil_pixtral:PixtralImageProcessorPil",
        {"size": {"longest_edge": 96}, "patch_size": {"height": 16, "width": 16}},
        _all,
    ),
}  # fmt: skip


def _values(data: bytes, rules: AnyResizing) -> list[NDArray[np.float32]]:
    picture, found, begin = picture_of(data, rules), [], 0
    for height, width in picture.layout.sizes:
        count = height * width * 3
        tile = np.frombuffer(picture.pixels, np.uint8, count, begin).reshape(height, width, 3)
        found.append(normalised(tile, rules).transpose(2, 0, 1))
        begin += count
    assert begin == len(picture.pixels)
    return found


@pytest.mark.parametrize("name", _CASES)
def test_pixel_values_are_exact(name: str) -> None:
    rules, place, settings, unpack = _CASES[name]
    module, _, attribute = place.partition(":")
    processor = getattr(importlib.import_module(f"transformers.models.{module}"), attribute)
    library = processor(**settings)
    rng = np.random.default_rng(8)
    sizes = [(1, 1), (32, 32), (31, 97), *rng.integers(9, 260, (9, 2)).tolist()]
    for height, width in sizes:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))
        file = io.BytesIO()
        image.save(file, "PNG")
        wanted = unpack(library(images=[image], return_tensors="np"))
        found = _values(file.getvalue(), rules)
        assert [one.shape for one in found] == [one.shape for one in wanted], (height, width)
        assert all(map(np.array_equal, found, wanted)), (height, width)


def test_narrow_pictures_of_gemma4_have_a_line_of_squares() -> None:
    module = importlib.import_module("transformers.models.gemma4.image_processing_pil_gemma4")
    rules = _CASES["gemma4"][0]
    for size in [(1, 5000), (5000, 1), (3, 250), (700, 10), (1, 70), (71, 1), (9, 640)]:
        wanted = module.get_aspect_ratio_preserving_size(*size, 2, 70 * 9, 3)
        assert rules.layout(size).sizes == (tuple(wanted),)


@pytest.mark.parametrize("name", ["qwen2-vl", "pixtral", "clip"])
def test_narrow_pictures_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="too narrow"):
        _CASES[name][0].layout((1, 201))


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_sizes_of_frames_are_those_of_the_video_processors(kind: str) -> None:
    is_third, rng = kind == "qwen3_vl", np.random.default_rng(9)
    # Qwen2 resizes frames as it does pictures; this module needs no torchvision.
    name = "video_processing_qwen3_vl" if is_third else "image_processing_pil_qwen2_vl"
    module = importlib.import_module(f"transformers.models.{kind}.{name}")
    rules = Frames(
        resample=3, factor=8, fewest_pixels=400, most_pixels=9000, per_tile=2,
        counts_frames=is_third, **_HALF,
    )  # fmt: skip
    limits = {"factor": 8, "min_pixels": 400, "max_pixels": 9000}
    for count, height, width in rng.integers((2, 1, 1), (40, 300, 300), (300, 3)).tolist():
        size = {"height": height, "width": width}
        if max(height, width) > 200 * min(height, width):
            continue
        frames = {"num_frames": count, "temporal_factor": 2} if is_third else {}
        wanted = module.smart_resize(**frames, **size, **limits)
        layout = rules.of_frames((height, width), count)
        assert layout.sizes == (tuple(wanted),) * -(-count // 2)
        assert layout.frames == 2


@pytest.mark.parametrize("limits", [(256, 3200), (5000, 5000), (1, 64), (64, 90000)])
def test_the_most_squares_hold_for_every_picture(limits: tuple[int, int]) -> None:
    fewest, most = limits
    given: dict[str, Any] = {
        "resample": 3, "factor": 8, "fewest_pixels": fewest, "most_pixels": most, **_HALF,
    }  # fmt: skip
    rules = Multiples(**given)
    frames = [Frames(**given, per_tile=2, counts_frames=counts) for counts in (False, True)]
    rng, found = np.random.default_rng(5), [0, 0, 0]
    for short, ratio, count in zip(
        rng.integers(1, 400, 4000).tolist(),
        rng.choice([1, 1.3, 20, 150, 199, 200], 4000).tolist(),
        rng.integers(1, 6, 4000).tolist(),
        strict=True,
    ):
        size = (short, int(short * ratio))
        layouts = rules.layout(size), *(one.of_frames(size, count) for one in frames)
        sizes = [layout.sizes[0] for layout in layouts]
        assert all(min(height, width) > 0 for height, width in sizes)
        found = [max(a, h * w // 64) for a, (h, w) in zip(found, sizes, strict=True)]
    for number, one in zip(found, (rules, *frames), strict=True):
        assert 0.7 * one.most_squares() <= number <= one.most_squares()
