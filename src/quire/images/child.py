"""The process in which pictures are decoded, started by `process` alone.

Decoders are large programs in C that read hostile bytes. This process has no file, socket or
environment variable of its parent, and the kernel limits its memory and its processor time.
"""

from __future__ import annotations

import warnings
from typing import Any

from PIL import Image, ImageFile, ImageOps

from quire.errors import RequestError
from quire.images.config import PROCESSOR_KWARGS
from quire.images.job import FORMATS, MAX_FRAMES, MAX_SCANS, DecodeJob
from quire.images.rules import AnyResizing, Frames, Layout, Resizing
from quire.images.serving import serve_decoder

ImageFile.LOAD_TRUNCATED_IMAGES = False
Image.MAX_IMAGE_PIXELS = None  # `_check_size` does, before anything is decoded
warnings.simplefilter("ignore")
_16_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_NOT_AN_IMAGE = f"the image must be a file of type {', '.join(FORMATS)}"
_NOT_A_VIDEO = (
    "the video must be frames (data:video/jpeg;base64,FRAME,FRAME), or an animated GIF or WebP "
    "file: containers such as mp4 cannot be decoded, so send some frames of them"
)


def decode(job: DecodeJob) -> tuple[Layout, list[bytes]]:
    """The layout, and the RGB bytes of each tile. Raises RequestError for a picture that cannot be
    used."""
    if isinstance(job.rules, Frames):
        return _video(job, job.rules)
    assert isinstance(job.rules, Resizing)
    image = _loaded(_opened(job.data, job.max_pixels), job.max_pixels)
    layout = job.rules.layout((image.height, image.width))
    pixels = [tile.tobytes() for tile in job.rules.tiles(image)]
    return layout, pixels


def _video(job: DecodeJob, rules: Frames) -> tuple[Layout, list[bytes]]:
    """All frames are resized alike; the last one is repeated until the last tile is full."""
    first = _opened(job.data, job.max_pixels, _NOT_A_VIDEO)
    is_animated = not job.more
    count = _num_frames(first) if is_animated else 1 + len(job.more)
    if count > MAX_FRAMES:
        raise RequestError(f"a video must have at most {MAX_FRAMES} frames, not {count}")
    total = count * first.width * first.height
    if total > job.max_video_pixels:
        raise RequestError(
            f"a video of {count} frames of {first.width} x {first.height} has {total} pixels; at "
            f"most {job.max_video_pixels} are decoded: send fewer or smaller frames"
        )
    pixels, size, layout = list[bytes](), (0, 0), Layout(())
    for number in range(count):
        image = first if is_animated or not number else _opened(
            job.more[number - 1], job.max_pixels
        )  # fmt: skip
        image = _loaded(image, job.max_pixels, number if is_animated else None)
        if not number:
            size = (image.height, image.width)
            layout = rules.of_frames(size, count)
            total = sum(layout.num_bytes(tile) for tile in range(len(layout.sizes))) // 3
            if total > job.max_pixels:
                raise RequestError(
                    f"a video of {count} frames has {total} pixels after resizing; at most "
                    f"{job.max_pixels} are allowed: send fewer frames, or set a smaller size in "
                    f"{PROCESSOR_KWARGS}"
                )
        elif (image.height, image.width) != size:
            raise RequestError(
                f"all frames of a video must have one size: frame {number} has {image.width} x "
                f"{image.height} pixels, and frame 0 has {size[1]} x {size[0]}"
            )
        height, width = layout.sizes[0]
        pixels.append(image.resize((width, height), rules.resample).tobytes())
    pixels += [pixels[-1]] * (len(layout.sizes) * layout.frames - count)
    return layout, pixels


def _num_frames(image: Any) -> int:
    """Frames of a file. Counting them reads a whole GIF."""
    try:
        return int(getattr(image, "n_frames", 1))
    except MemoryError:
        raise
    except Exception as error:
        raise _broken(error) from None


def _loaded(image: Any, max_pixels: int, frame: int | None = None) -> Image.Image:
    """The picture in RGB, in its orientation. `frame`: one of an animated file."""
    try:
        if frame is not None:
            image.seek(frame)
            _check_size(image, max_pixels)  # a frame of a GIF may be larger than the first one
        image.load()
        return _rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except RequestError:
        raise
    except Exception as error:  # a damaged file can make Pillow raise anything
        raise _broken(error) from None


def _opened(data: bytes, max_pixels: int, unknown: str = _NOT_AN_IMAGE) -> Image.Image:
    """`unknown`: the error for a file of another type."""
    import io

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except Exception as error:
        raise _broken(error, unknown) from None
    _check_size(image, max_pixels)
    # Each scan of a JPEG visits all pixels. Its data cannot contain the marker of a scan.
    if image.format in ("JPEG", "MPO") and data.count(b"\xff\xda") > MAX_SCANS:
        raise RequestError(f"a JPEG file must have at most {MAX_SCANS} scans")
    return image


def _check_size(image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise RequestError(
            f"an image of {image.width} x {image.height} pixels is too large: at most "
            f"{max_pixels} pixels are decoded"
        )


def _broken(error: Exception, unknown: str = _NOT_AN_IMAGE) -> RequestError:
    """Pillow's own texts are not repeated: they may contain addresses of memory."""
    if isinstance(error, Image.UnidentifiedImageError):
        return RequestError(unknown)
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


def main() -> None:
    """Decodes pictures until the parent closes the socket, or until the process has grown."""
    serve_decoder(decode, AnyResizing)
