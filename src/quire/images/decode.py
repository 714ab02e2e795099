"""Decodes a picture with Pillow and cuts it into tiles. Runs in the child process alone."""

from __future__ import annotations

import warnings
from typing import Any

from PIL import Image, ImageFile, ImageOps

from quire.errors import RequestError
from quire.images.job import FORMATS, DecodedHead, DecodeJob

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
