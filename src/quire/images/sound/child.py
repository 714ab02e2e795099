"""The process in which sounds are decoded, under the same limits as pictures (`child`)."""

from __future__ import annotations

from quire.images.job import DecodeJob
from quire.images.rules import Layout
from quire.images.serving import serve_decoder
from quire.images.sound import container, wav
from quire.images.sound.rules import RATE, Sound
from quire.images.sound.spectrum import log_mel
from quire.images.sound.wav import resampled


def decode(job: DecodeJob) -> tuple[Layout, list[bytes]]:
    """The layout, and the features of all tiles. Raises RequestError for a file that cannot be
    used."""
    assert isinstance(job.rules, Sound)
    is_wav = job.data[:4] == b"RIFF"
    mono_samples = wav.mono_samples if is_wav else container.mono_samples
    samples = resampled(*mono_samples(job.data), RATE)
    layout = job.rules.layout(len(samples))
    return layout, [log_mel(samples, job.rules).astype("<f4").tobytes()]


def main() -> None:
    """Decodes sounds until the parent closes the socket, or until the process has grown."""
    serve_decoder(decode, Sound)
