"""The process in which sounds are decoded, under the same limits as pictures (`child`)."""

from __future__ import annotations

import io

import numpy as np

from quire.images.job import DecodeJob
from quire.images.rules import Layout
from quire.images.serving import serve_decoder
from quire.images.sound.reading import samples
from quire.images.sound.rules import Sound
from quire.images.sound.spectrum import log_mel
from quire.images.sound.wav import MAX_SECONDS


def decode(job: DecodeJob) -> tuple[Layout, list[bytes]]:
    """The layout, and the features of all tiles. Raises RequestError for a file that cannot be
    used."""
    assert isinstance(job.rules, Sound)
    found = np.concatenate([*samples(io.BytesIO(job.data), MAX_SECONDS)])
    layout = job.rules.layout(len(found))
    return layout, [log_mel(found, job.rules).astype("<f4").tobytes()]


def main() -> None:
    """Decodes sounds until the parent closes the socket, or until the process has grown."""
    serve_decoder(decode, Sound)
