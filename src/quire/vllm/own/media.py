"""Helpers that scripts import from vLLM for pictures and sounds: as data URLs, and read from URLs.

They are for the user's own URLs: they read all files and connect to all hosts. The server reads
the URLs of its requests with `quire.images.sources`.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import RequestError
from quire.images.config import ImagesConfig
from quire.images.job import MAX_FILE_BYTES
from quire.images.sound.wav import wav_of
from quire.images.sources import ImageSources, checked_size

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_TIMEOUT_S = 5.0
_WHITE = (255, 255, 255)


def encode_image_base64(
    image: Picture, *, image_mode: str | None = "RGB", format: str = "PNG"
) -> str:
    """Base64 of a picture's file. `image_mode` None: the mode of the picture stays."""
    if image_mode is not None:
        image = convert_image_mode(image, image_mode)
    file = io.BytesIO()
    image.save(file, format)
    return base64.b64encode(file.getvalue()).decode()


def encode_image_url(image: Picture, *, image_mode: str | None = "RGB", format: str = "PNG") -> str:
    """A data URL with a picture's file."""
    data = encode_image_base64(image, image_mode=image_mode, format=format)
    return f"data:image/{format.lower()};base64,{data}"


def encode_audio_base64(audio: Any, sampling_rate: int, *, format: str = "WAV") -> str:
    """Base64 of a WAV file with the samples of one channel. Raises RequestError for other
    formats."""
    if format.upper() != "WAV":
        raise RequestError(f"format must be 'WAV', not {format!r}: other files are not read")
    return base64.b64encode(wav_of(np.asarray(audio, np.float32), int(sampling_rate))).decode()


def encode_audio_url(audio: Any, sampling_rate: int, *, format: str = "WAV") -> str:
    """A data URL with a WAV file."""
    return f"data:audio/wav;base64,{encode_audio_base64(audio, sampling_rate, format=format)}"


def encode_video_base64(frames: Any, *, format: str = "JPEG") -> str:
    """Base64 of the frames [number, height, width, 3] of bytes as JPEG files, with commas between
    them. Raises RequestError for other formats."""
    from PIL import Image

    if format.upper() != "JPEG":
        raise RequestError(f"format must be 'JPEG', not {format!r}: other files are not read")
    pictures = (Image.fromarray(frame) for frame in np.asarray(frames))
    return ",".join(encode_image_base64(one, format="JPEG") for one in pictures)


def encode_video_url(frames: Any, *, format: str = "JPEG") -> str:
    """A data URL with the frames of a video."""
    return f"data:video/jpeg;base64,{encode_video_base64(frames, format=format)}"


def fetch_image(image_url: str, image_io_kwargs: dict[str, Any] | None = None) -> Picture:
    """The picture of a URL, in its orientation. `image_io_kwargs`: `image_mode` (None: as it is in
    the file) and `rgba_background_color`. Raises RequestError."""
    from PIL import Image, ImageOps

    settings = {"image_mode": "RGB", "rgba_background_color": _WHITE, **(image_io_kwargs or {})}
    mode, ground = settings.pop("image_mode"), tuple(settings.pop("rgba_background_color"))
    if settings:
        raise RequestError(
            "image_io_kwargs must have image_mode and rgba_background_color alone, not "
            f"{', '.join(settings)}"
        )
    data = _read(image_url)
    try:
        image: Picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    except OSError as error:
        raise RequestError(f"the URL must be that of a picture: {error}") from None
    return image if mode is None else convert_image_mode(image, mode, ground)


def convert_image_mode(image: Picture, to_mode: str, background_color: Any = _WHITE) -> Picture:
    """The picture in another mode. In RGB, what is transparent gets the color of the background."""
    from PIL import Image

    if image.mode == to_mode:
        return image
    if to_mode != "RGB" or not image.has_transparency_data:
        return image.convert(to_mode)
    image = image.convert("RGBA")
    found = Image.new("RGB", image.size, tuple(background_color))
    found.paste(image, mask=image.getchannel("A"))
    return found


def _read(url: str) -> bytes:
    if url.partition(":")[0].lower() not in ("http", "https"):
        return ImageSources.of(ImagesConfig({"image": 1}, local_path="/")).read(url)
    from urllib.request import Request, urlopen

    try:
        request = Request(url, headers={"User-Agent": "quire"})
        with urlopen(request, timeout=_TIMEOUT_S) as reply:
            return checked_size(reply.read(MAX_FILE_BYTES + 1))
    except (OSError, ValueError) as error:
        raise RequestError(f"the URL could not be fetched: {error}") from None
