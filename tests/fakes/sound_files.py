"""Makes sound files of all types with PyAV."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from quire.images.sound.reading import mono_blocks
from quire.images.sound.resampling import resampled
from quire.images.sound.wav import MAX_SECONDS, Floats

TYPES = {
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "ogg": ("ogg", "vorbis"),
    "opus": ("ogg", "libopus"),
    "m4a": ("ipod", "aac"),
    "webm": ("webm", "libopus"),
    "mp4": ("mp4", "alac"),
}
"""FFmpeg's names of a muxer and an encoder."""


def sound_file(kind: str, samples: Any, rate: int = 48_000, video: int = 0) -> bytes:
    """A file with int16 samples [count, channels]. `video`: the side of the frames of a video that
    it has, too."""
    import av

    muxer, encoder = TYPES[kind]
    layout = {1: "mono", 2: "stereo"}[samples.shape[1]]
    written = io.BytesIO()
    with av.open(written, "w", format=muxer) as file:
        if video:
            pictures = file.add_stream("mpeg4", rate=1)
            pictures.width = pictures.height = video
            pictures.pix_fmt = "yuv420p"
        stream: Any = file.add_stream(encoder, rate=rate, layout=layout)
        if encoder == "vorbis":
            stream.codec_context.options = {"strict": "experimental"}
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples).reshape(1, -1), format="s16", layout=layout
        )
        frame.sample_rate = rate
        packets = [*stream.encode(frame), *stream.encode(None)]
        if video:
            image = av.VideoFrame(video, video, "yuv420p")
            packets += [*pictures.encode(image), *pictures.encode(None)]
        for packet in packets:
            file.mux(packet)
    return written.getvalue()


def mono_samples(data: bytes) -> tuple[Floats, int]:
    """The mean of the channels of a file, and its rate."""
    rates, blocks = zip(*mono_blocks(io.BytesIO(data), MAX_SECONDS), strict=True)
    return np.concatenate(blocks), rates[0]


def at_rate(samples: Floats, old: int, new: int) -> Floats:
    """Samples at another rate."""
    return np.concatenate([*resampled([samples], old, new)])
