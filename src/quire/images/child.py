"""The process in which pictures are decoded, started by `process` alone.

Decoders are large programs in C that read hostile bytes. This process has no file, socket or
environment variable of its parent, and the kernel limits its memory and its processor time.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import msgspec
from PIL import Image, ImageFile, ImageOps

from quire.errors import RequestError
from quire.images.job import FORMATS, MAX_MEMORY_BYTES, PICTURE, REFUSAL, DecodedHead, DecodeJob
from quire.system.child_serving import limit, limit_processor_time, serve
from quire.units import MiB

ImageFile.LOAD_TRUNCATED_IMAGES = False
Image.MAX_IMAGE_PIXELS = None  # `_opened` checks the size before anything is decoded
warnings.simplefilter("ignore")
_16_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def decode(job: DecodeJob) -> tuple[DecodedHead, list[bytes]]:
    """The head, and the RGB bytes of each tile. Raises RequestError for a picture that cannot be
    used."""
    image = _opened(job)
    try:
        image.load()
        image = _rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can make Pillow raise anything
        raise _broken(error) from None
    size = (image.height, image.width)
    layout = job.rules.layout(size)
    pixels = [tile.tobytes() for tile in job.rules.tiles(image)]
    return DecodedHead(size, layout), pixels


def _opened(job: DecodeJob) -> Image.Image:
    import io

    try:
        image = Image.open(io.BytesIO(job.data), formats=FORMATS)
    except MemoryError:
        raise
    except Exception as error:
        raise _broken(error) from None
    if image.width * image.height > job.max_pixels:
        raise RequestError(
            f"an image of {image.width} x {image.height} pixels is too large: at most "
            f"{job.max_pixels} pixels are decoded"
        )
    return image


def _broken(error: Exception) -> RequestError:
    """Pillow's own texts are not repeated: they may contain addresses of memory."""
    if isinstance(error, Image.UnidentifiedImageError):
        return RequestError(f"the image must be a file of type {', '.join(FORMATS)}")
    return RequestError("the image file is damaged or cut off, and cannot be decoded")


def _rgb(image: Any) -> Image.Image:
    """The picture in RGB. What is transparent becomes white, as in vLLM; of 16 bits, the upper 8
    are kept."""
    if image.mode == "RGB":
        return image
    if image.mode in _16_BITS or image.mode == "I":
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if image.mode == "F":
        raise RequestError("an image with floating-point pixels cannot be used")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        ground.paste(image, (0, 0), image)
        image = ground
    return image.convert("RGB")


_LARGE_BYTES = 128 * MiB
_LIMITS = {
    "RLIMIT_AS": 2 * MAX_MEMORY_BYTES,
    "RLIMIT_DATA": MAX_MEMORY_BYTES,
    "RLIMIT_CORE": 0,
    "RLIMIT_FSIZE": 0,
    "RLIMIT_NPROC": 0,
}


def main() -> None:
    """Decodes pictures until the parent closes the socket, or until the process has grown."""
    gc.freeze()
    for name, most in _LIMITS.items():
        limit(name, most)
    serve(_answer, _LARGE_BYTES)


_jobs = msgspec.msgpack.Decoder(DecodeJob)


def _answer(data: bytes) -> tuple[bytes, bytes]:
    try:
        job = _jobs.decode(data)
        limit_processor_time(job.max_seconds)
        head, tiles = decode(job)
        encoded = msgspec.msgpack.encode(head)
        return PICTURE, b"".join([len(encoded).to_bytes(4, "big"), encoded, *tiles])
    except MemoryError:
        return REFUSAL, b"the image needs too much memory"
    except RequestError as error:
        return REFUSAL, str(error).encode()
