"""Reads what callers give as images and videos: files, URLs, Pillow images, arrays of bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quire.chat.job import GivenEmbeds, GivenVideo
from quire.errors import PromptError, RequestError, quoted
from quire.images.picture import KeptPictures, Picture, picture_of
from quire.images.rules import AnyResizing
from quire.images.sources import ImageSources

_DATA = "multi_modal_data"


def given_media(data: Any) -> list[Any]:
    """The images of `multi_modal_data`, then its videos as `GivenVideo`. Raises PromptError."""
    if not isinstance(data, Mapping):
        raise _error(f"must be a dict such as {{'image': picture}}, got {quoted(data)}")
    for name, value in data.items():
        if name not in ("image", "video") and value is not None:
            raise _error(f"must have image and video alone, got {quoted(name)}")
    images, videos = data.get("image"), data.get("video")
    return [*_images(images), *map(GivenVideo, _videos(videos))]


def _images(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, Mapping) or _is_float(given):
        return [GivenEmbeds(given)]
    items = list(given) if isinstance(given, list | tuple) else [given]
    return [GivenEmbeds(one) if _is_float(one) else one for one in items]


def _videos(given: Any) -> list[Any]:
    """A list of frames is one video."""
    if given is None:
        return []
    if isinstance(given, list | tuple) and not (given and _is_frame(given[0])):
        return list(given)
    return [given]


def _is_frame(given: Any) -> bool:
    return type(given).__module__.startswith("PIL.") or getattr(given, "ndim", 0) == 3


def _is_float(given: Any) -> bool:
    """Whether it is an array or a tensor of floating-point numbers: rows of an encoder, because
    pixels are bytes."""
    return hasattr(given, "ndim") and "float" in str(getattr(given, "dtype", ""))


def decoded_image(
    given: Any, rules: AnyResizing, sources: ImageSources, kept: KeptPictures | None
) -> Picture:
    """A picture from a URL, the bytes of a file, a Pillow image or an array [height, width, 3] of
    bytes. Raises PromptError."""
    if isinstance(given, Picture):
        return given
    try:
        return picture_of(_bytes_of(given, sources), rules, kept=kept)
    except PromptError:
        raise
    except RequestError as error:
        raise PromptError(str(error), parameter="image") from None


def decoded_video(
    given: GivenVideo, rules: AnyResizing, sources: ImageSources, kept: KeptPictures | None
) -> Picture:
    """A video from a URL, the bytes of an animated file, a list of frames or an array [frames,
    height, width, 3] of bytes. Raises PromptError."""
    source = given.source
    try:
        if isinstance(source, str):
            files = sources.read_frames(source)
        elif isinstance(source, list | tuple) or getattr(source, "ndim", 0) == 4:
            files = [_bytes_of(frame, sources) for frame in source]
        elif isinstance(source, bytes | bytearray | memoryview):
            files = [bytes(source)]
        else:
            files = []
        if not files:
            raise _error(
                "must have as a video a list of frames, an array [frames, height, width, 3] of "
                f"uint8, or an animated GIF or WebP file, got {type(source).__name__}"
            )
        return picture_of(files[0], rules, files[1:], kept)
    except PromptError:
        raise
    except RequestError as error:
        raise PromptError(str(error), parameter="video") from None


def check_uuids(given: Any, num_images: int, num_videos: int) -> None:
    """Raises PromptError unless the ids of the images and of the videos are lists of texts. They
    have no effect: the bytes of a picture identify it."""
    if given is None:
        return
    counts = {"image": num_images, "video": num_videos}
    if (
        not isinstance(given, Mapping)
        or not counts.keys() >= given.keys()
        or not all(ids is None or _are_ids(ids, counts[name]) for name, ids in given.items())
    ):
        raise PromptError(
            f"multi_modal_uuids must have the form {{'image': [id or None], 'video': [...]}} with "
            f"{num_images} and {num_videos} entries, got {quoted(given)}",
            parameter="multi_modal_uuids",
        )


def _are_ids(given: Any, count: int) -> bool:
    ids = [given] if isinstance(given, str) else given
    return (
        isinstance(ids, Sequence)
        and len(ids) == count
        and all(one is None or isinstance(one, str) for one in ids)
    )


def _bytes_of(given: Any, sources: ImageSources) -> bytes:
    if isinstance(given, str):
        return sources.read(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if type(given).__module__.startswith("PIL."):
        return _png(given)
    if (array := _array_of(given)) is not None:
        from PIL import Image

        return _png(Image.fromarray(array))
    if given is None:
        raise _error("must have the image itself: an image cannot be named by its uuid alone")
    raise _error(
        "must have a Pillow image, the bytes of a file, a URL, or an array [height, width, 3] of "
        f"uint8, got {type(given).__name__}"
    )


def _array_of(given: Any) -> Any:
    """An array of bytes as [height, width, 3] or [height, width], also if its channels come first
    or it is torch's; None for anything else."""
    if not hasattr(given, "ndim") or not str(getattr(given, "dtype", "")).endswith("uint8"):
        return None
    array = np.ascontiguousarray(given)
    if array.ndim == 3 and array.shape[2] != 3 and array.shape[0] == 3:
        array = np.ascontiguousarray(array.transpose(1, 2, 0))
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return array if is_image and array.size else None


def _png(image: Any) -> bytes:
    from PIL import ImageOps

    try:
        image = ImageOps.exif_transpose(image)
        if image.mode not in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "I"):
            image = image.convert("RGB")
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
    except Exception as error:  # a damaged file can make Pillow raise anything
        raise _error(f"has an image that cannot be read ({type(error).__name__})") from None
    return file.getvalue()


def _error(message: str) -> PromptError:
    return PromptError(f"{_DATA} {message}", parameter=_DATA)
