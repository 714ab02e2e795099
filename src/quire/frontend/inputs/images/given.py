"""Reads what callers give as images, videos and audio: files, URLs, Pillow images, arrays."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from quire.chat.job import Given, GivenEmbeds
from quire.errors import PromptError, RequestError, quoted
from quire.images.job import MAX_FILE_BYTES
from quire.images.modality import MODALITIES
from quire.images.picture import KeptPictures, Picture, picture_of
from quire.images.rules import Rules
from quire.images.sound.rules import RATE
from quire.images.sound.wav import RATES, wav_of
from quire.images.sources import ImageSources

_DATA = "multi_modal_data"


def given_media(data: Any) -> list[Any]:
    """The images of `multi_modal_data`, then its videos and its sounds, each as `Given`. Raises
    PromptError."""
    if not isinstance(data, Mapping):
        raise _error(f"must be a dict such as {{'image': picture}}, got {quoted(data)}")
    for name, value in data.items():
        if name not in MODALITIES and value is not None:
            raise _error(f"must have {', '.join(MODALITIES)} alone, got {quoted(name)}")
    return [
        one if kind == "image" else Given(kind, one)
        for kind, (items, _) in _READERS.items()
        if data.get(kind) is not None
        for one in items(data[kind])
    ]


def _images(given: Any) -> list[Any]:
    if isinstance(given, Mapping) or _is_float(given):
        return [GivenEmbeds(given)]
    items = list(given) if isinstance(given, list | tuple) else [given]
    return [GivenEmbeds(one) if _is_float(one) else one for one in items]


def _videos(given: Any) -> list[Any]:
    """A list of frames is one video."""
    if isinstance(given, list | tuple) and not (given and _is_frame(given[0])):
        return list(given)
    return [given]


def _sounds(given: Any) -> list[Any]:
    """A pair of samples and a rate is one sound."""
    return [*given] if isinstance(given, list | tuple) and not _is_rated(given) else [given]


def _is_rated(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) == 2 and isinstance(given[1], int | float)


def _is_frame(given: Any) -> bool:
    return type(given).__module__.startswith("PIL.") or getattr(given, "ndim", 0) == 3


def _is_float(given: Any) -> bool:
    """Whether it is an array or a tensor of floating-point numbers: rows of an encoder, because
    pixels are bytes."""
    return hasattr(given, "ndim") and "float" in str(getattr(given, "dtype", ""))


def kind_of_given(given: Any) -> str:
    """A name of `MODALITIES`."""
    return given.kind if isinstance(given, Given) else "image"


def decoded(given: Any, rules: Rules, sources: ImageSources, kept: KeptPictures | None) -> Picture:
    """The pictures and sounds of a caller, decoded. Raises PromptError."""
    if isinstance(given, Picture):
        return given
    kind, source = kind_of_given(given), given.source if isinstance(given, Given) else given
    try:
        first, *more = _READERS[kind][1](source, sources)
        return picture_of(first, rules, more, kept, sources.limit)
    except PromptError:
        raise
    except RequestError as error:
        raise PromptError(str(error), parameter=kind) from None


def _frames_of(source: Any, sources: ImageSources) -> list[bytes]:
    """The files of a video from a URL, the bytes of an animated file, a list of frames or an array
    [frames, height, width, 3] of bytes."""
    files: list[bytes] = []
    if isinstance(source, str):
        files = sources.read_frames(source)
    elif isinstance(source, list | tuple) or getattr(source, "ndim", 0) == 4:
        files = [_bytes_of(frame, sources) for frame in source]
    elif isinstance(source, bytes | bytearray | memoryview):
        files = [bytes(source)]
    if not files:
        raise _error(
            "must have as a video a list of frames, an array [frames, height, width, 3] of "
            f"uint8, or an animated GIF or WebP file, got {type(source).__name__}"
        )
    return files


def _wav_of(source: Any, sources: ImageSources) -> list[bytes]:
    """The file of a sound from a URL, the bytes of a sound file, or samples with or without their
    rate."""
    if isinstance(source, str):
        return [sources.read(source)]
    if isinstance(source, bytes | bytearray | memoryview):
        return [bytes(source)]
    return [wav_of(*_samples(source))]


def _samples(given: Any) -> tuple[Any, int]:
    """Samples as one channel of float32, and their rate."""
    samples, rate = given if _is_rated(given) else (given, RATE)
    size = prod(getattr(samples, "shape", ()))
    is_rate = RATES[0] <= rate <= RATES[1] and rate == int(rate)
    if not _is_float(samples) or samples.ndim not in (1, 2) or not size or not is_rate:
        raise _error(
            "must have as audio an array of floating-point samples from -1 to 1, or a pair of it "
            f"and a whole rate from {RATES[0]} to {RATES[1]}, the bytes of a sound file, or a URL"
        )
    if 4 * size > MAX_FILE_BYTES:
        raise _error(f"must have at most {MAX_FILE_BYTES // 4} samples as audio, not {size}")
    try:
        array = np.asarray(samples, np.float32)
    except (TypeError, ValueError) as error:  # a tensor of a type or place that NumPy lacks
        raise _error(f"has audio that cannot be read: {error}") from None
    # As in vLLM, the shorter axis is that of the channels.
    return array if array.ndim == 1 else array.mean(axis=int(np.argmin(array.shape))), int(rate)


def check_uuids(given: Any, counts: Mapping[str, int]) -> None:
    """Raises PromptError unless the ids of the images, videos and sounds are lists of texts. They
    have no effect: the bytes of a file identify it. `counts`: how many there are, by the kind."""
    if given is None:
        return
    if (
        not isinstance(given, Mapping)
        or not counts.keys() >= given.keys()
        or not all(ids is None or _are_ids(ids, counts[name]) for name, ids in given.items())
    ):
        raise PromptError(
            f"multi_modal_uuids must have the form {{'image': [id or None], ...}} with as many "
            f"entries as there are, {dict(counts)}, got {quoted(given)}",
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
    """The file of a picture from a URL, the bytes of a file, a Pillow image or an array [height,
    width, 3] of bytes."""
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


_Items = Callable[[Any], list[Any]]
_Files = Callable[[Any, ImageSources], list[bytes]]
_READERS: dict[str, tuple[_Items, _Files]] = {
    "image": (_images, lambda given, sources: [_bytes_of(given, sources)]),
    "video": (_videos, _frames_of),
    "audio": (_sounds, _wav_of),
}
"""By modality: what is given as a list, and the files of one of them."""
