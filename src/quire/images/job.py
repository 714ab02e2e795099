"""Jobs of the child processes, and their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.units import MiB

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Types of files that are decoded, by Pillow's names. Of an animated file, the first frame."""
MAX_PIXELS = 1 << 26
"""Most pixels of a picture, before it is resized."""
MAX_VIDEO_PIXELS = 1 << 28
"""Most pixels of all frames of a video together, before they are resized: about as many as can be
decoded within its limit of time."""
MAX_SCANS = 100
"""Most scans of a JPEG file; encoders write about ten."""
MAX_FILE_BYTES = 64 * MiB
"""Most bytes of a file, and of the files of a video together."""
MAX_FRAMES = 1024
"""Most frames of a video."""
MAX_REQUEST_SECONDS = 60.0
"""Time of a server for all files of a request: to fetch them, and processor time to decode them."""
MAX_MEMORY_BYTES = 1536 * MiB
"""Most memory of a child process."""
TILES, REFUSAL = b"P", b"R"
"""The kinds of replies."""
WANTED, FRAMES = b"W", b"F"
"""Kinds of further replies to a `SpectrumJob`: a place in the file whose bytes are wanted, and the
next frames."""


class DecodeJob(msgspec.Struct):
    """A file and what to make of it."""

    data: bytes
    """For a video: the first frame, or an animated file."""
    rules: Any
    """`Rules` of the kind that the process decodes."""
    more: list[bytes] = []
    """The other frames of a video."""
    max_pixels: int = MAX_PIXELS
    """Most pixels of a picture, and of the resized frames of a video together."""
    max_video_pixels: int = MAX_VIDEO_PIXELS
    max_seconds: float = 10.0
    """Processor time to decode it."""


class SpectrumJob(msgspec.Struct, frozen=True):
    """A sound file whose spectrum is asked for, block by block. The child asks for its bytes."""

    num_bytes: int
    bins: int
    max_seconds: float
    """Longest sound."""
