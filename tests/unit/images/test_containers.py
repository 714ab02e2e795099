"""Sound files of other types than WAV."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from sound_files import TYPES, mono_samples, sound_file

from quire.errors import RequestError
from quire.images.job import DecodeJob
from quire.images.process import decoded
from quire.images.sound import wav
from quire.images.sound.child import decode
from quire.images.sound.rules import Sound

_RULES = Sound(bins=16, frames=3000, pool=4, is_divided=True)


def _samples(seconds: float = 0.3, rate: int = 48_000) -> np.ndarray:
    times = np.arange(round(seconds * rate)) / rate
    one = np.sin(2 * np.pi * 440 * times) * 9000
    return np.stack([one, one / 2], 1).astype(np.int16)


def _wav(samples: np.ndarray, rate: int) -> bytes:
    size = struct.pack("<I", samples.nbytes)
    head = struct.pack("<IHHIIHH", 16, 1, 2, rate, rate * 4, 4, 16)
    return b"RIFF\0\0\0\0WAVEfmt " + head + b"data" + size + samples.tobytes()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    beginnings = (
        b"fLaC",
        b"OggS",
        b"\x1aE\xdf\xa3",
        b"ID3\4",
        b"\xff\xfb\x90",
        b"\0\0\0\x1cftypM4A ",
    )
    for begin in beginnings:
        with pytest.raises(RequestError, match=r"pip install 'quire-engine\[audio\]'"):
            decode(DecodeJob(begin + bytes(99), _RULES))
    for begin in (b"", b"\xff\xf1P\x80", b"#!AMR", b"ID", b"%PDF"):
        with pytest.raises(RequestError, match="WAV, FLAC, MP3, OGG, OPUS, M4A, MP4 or WEBM"):
            decode(DecodeJob(begin + bytes(bool(begin) * 99), _RULES))


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_has_the_samples_that_were_encoded(kind: str) -> None:
    pytest.importorskip("av")
    given = _samples()
    wanted, _ = mono_samples(_wav(given, 48_000))
    found, rate = mono_samples(sound_file(kind, given))
    assert rate == 48_000
    if kind in ("flac", "mp4"):  # without loss
        assert np.array_equal(found, wanted)
    else:
        assert 0 <= len(found) - len(wanted) <= 2048
        spectra = [np.abs(np.fft.rfft(one[4000:12_000])) for one in (found, wanted)]
        assert np.abs(spectra[0] - spectra[1]).max() < 0.05 * spectra[1].max()


def test_a_child_decodes_flac_to_the_features_of_the_same_wav() -> None:
    pytest.importorskip("av")
    given = _samples(rate=44_100)
    results = [decoded(data, _RULES) for data in (
        sound_file("flac", given, 44_100), _wav(given, 44_100),
        b"ID3\4\0\0\0\0\0\2ab" + sound_file("flac", given, 44_100),
    )]  # fmt: skip
    assert results[0][0] == results[1][0] == results[2][0]
    assert bytes(results[0][1]) == bytes(results[1][1]) == bytes(results[2][1])


def test_files_that_claim_too_much_are_refused_or_have_what_is_there() -> None:
    pytest.importorskip("av")
    hours = bytearray(sound_file("flac", _samples()))
    hours[21:26] = bytes([hours[21] | 15]) + b"\xff" * 4  # the number of samples
    assert len(mono_samples(bytes(hours))[0]) == len(_samples())
    with pytest.raises(RequestError, match="655350 samples of a second; 1000 to 384000"):
        mono_samples(sound_file("flac", _samples(), 655_350))
    silence = sound_file("flac", np.zeros((601 * 8000, 1), np.int16), 8000)
    with pytest.raises(RequestError, match="more than 600 s: divide it"):
        mono_samples(silence)
    opus = bytearray(sound_file("opus", _samples()))
    at = opus.index(b"OpusHead") + 9
    opus[at] = 100
    with pytest.raises(RequestError):
        mono_samples(bytes(opus))
    with pytest.raises(RequestError, match="100 channels; 1 to 64"):
        wav.check_form(48_000, 100)


_GROWTH = """
import io, resource, sys
import av
from quire.images.sound.container import blocks
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = open(sys.argv[1], "rb").read()
before = peak()
count = sum(len(one) for _, one in blocks(io.BytesIO(data), 600))
print(count, peak() - before)
"""


def test_frames_of_a_video_are_not_decoded(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = tmp_path / "x.mp4"
    path.write_bytes(sound_file("mp4", _samples(), video=8000))
    command = [sys.executable, "-c", _GROWTH, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    count, grown_kib = map(int, done.stdout.split())
    assert count == len(_samples())
    assert grown_kib < 30_000  # a frame alone has 60 MB of brightness


def _mutated(chooser: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(chooser.randint(1, 6)):
        at = chooser.choice([chooser.randrange(len(data)), chooser.randrange(min(len(data), 400))])
        match chooser.randrange(4):
            case 0:
                data[at] = chooser.randrange(256)
            case 1:
                data[at : at + 4] = chooser.randbytes(4)
            case 2:
                del data[at : at + chooser.randrange(200)]
            case _:
                data[at:at] = data[: chooser.randrange(300)]
        if len(data) < 16:
            break
    return bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES)
def test_damaged_files_are_errors_of_the_request_and_later_ones_are_decoded(kind: str) -> None:
    pytest.importorskip("av")
    good, chooser = sound_file(kind, _samples()), random.Random(kind)
    wanted = bytes(decoded(good, _RULES)[1])
    for _ in range(150):
        with suppress(RequestError):
            decoded(_mutated(chooser, good), _RULES)
    assert bytes(decoded(good, _RULES)[1]) == wanted
