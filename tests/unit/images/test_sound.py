"""Sounds: the features are those of transformers to the bit, WAV files are read with all checks."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import numpy as np
import pytest
from sound_files import at_rate, mono_samples

from quire.errors import RequestError
from quire.images.cache import PictureCache
from quire.images.job import DecodeJob
from quire.images.picture import KeptPictures, Picture, picture_of
from quire.images.rules import Layout
from quire.images.sound.child import decode
from quire.images.sound.rules import Sound
from quire.images.sound.spectrum import log_mel
from quire.images.sound.wav import wav_of

_RULES = Sound(bins=80, frames=3000, pool=2, is_divided=False)
_DIVIDED = Sound(bins=128, frames=3000, pool=4, is_divided=True)


def _noise(count: int, seed: int = 0) -> Any:
    numbers = np.random.default_rng(seed)
    return (numbers.normal(0, 0.1, count) * np.linspace(0, 1, count)).astype(np.float32)


@pytest.mark.parametrize("count", [700, 16000 * 3 + 37, 479900, 480000])
def test_features_are_those_of_transformers(count: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    samples = _noise(count)
    padded = np.pad(samples, (0, 480000 - count))
    found, [size] = log_mel(samples, _RULES), _RULES.layout(count).sizes
    assert found.shape == size
    assert np.array_equal(
        found, extractor._np_extract_fbank_features(padded[None], "cpu")[0].T[: len(found)]
    )
    given = extractor(samples, sampling_rate=16000, return_attention_mask=True)
    assert np.abs(found - given["input_features"][0].T[: len(found)]).max() < 1e-4
    # As many rows as Qwen2-Audio's processor asks for.
    frames = int(given["attention_mask"].sum())
    assert size[0] // 2 // 2 == (((frames - 1) // 2 + 1) - 2) // 2 + 1


def test_long_sounds_are_divided_as_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    samples = _noise(16000 * 31 + 5)
    found, layout = log_mel(samples, _DIVIDED), _DIVIDED.layout(len(samples))
    assert layout == Layout(((3000, 128),) * 2, depth=4, seconds=len(samples) / 16000)
    assert layout.num_bytes(1) == 3000 * 128 * 4
    padded = np.pad(samples, (0, 960000 - len(samples)))
    assert np.array_equal(found, extractor._np_extract_fbank_features(padded[None], "cpu")[0].T)


def test_the_shortest_sound_has_one_row() -> None:
    assert _RULES.layout(321).sizes[0][0] // 2 // 2 == 1  # 0.02 s and one sample
    with pytest.raises(RequestError, match=r"it must be longer than 0\.02 s"):
        _RULES.layout(320)


@pytest.mark.parametrize("rate", [8000, 11025, 12345, 22050, 44100, 48000, 96000])
def test_resampling_has_the_values_of_torchaudio(rate: int) -> None:
    torch = pytest.importorskip("torch")
    samples = _noise(5001)
    divisor = math.gcd(rate, 16000)
    old, new = rate // divisor, 16000 // divisor
    base = min(old, new) * 0.99
    width = math.ceil(6 * old / base)
    index = torch.arange(-width, width + old, dtype=torch.float64)[None] / old
    times = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + index) * base
    times = times.clamp(-6, 6)
    kernel = torch.sinc(times) * torch.cos(times * math.pi / 12) ** 2 * base / old
    padded = torch.nn.functional.pad(
        torch.tensor(samples)[None, None].double(), (width, width + old)
    )
    wanted = torch.nn.functional.conv1d(padded, kernel[:, None], stride=old)[0].T.reshape(-1)
    count = math.ceil(new * len(samples) / old)
    found = at_rate(samples, rate, 16000)
    assert len(found) == count
    assert np.abs(found - wanted[:count].numpy()).max() < 1e-6


def _wav(kind: int, bits: int, channels: int, body: bytes, rate: int = 16000, **more: Any) -> bytes:
    width = more.get("width", channels * bits // 8)
    head = struct.pack("<HHIIHH", kind, channels, rate, 0, width, bits)
    if more.get("inner"):
        head += struct.pack("<HHIH14x", 22, bits, 0, more["inner"])
    size = more.get("size", len(body))
    chunks = (
        b"fmt " + struct.pack("<I", len(head)) + head + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    )
    return b"RIFF\0\0\0\0WAVE" + chunks + b"data" + struct.pack("<I", size) + body


def test_all_kinds_of_samples_become_numbers_from_minus_one_to_one() -> None:
    whole = np.array([-(2**31), 0, 2**30, 2**31 - 2**8], np.int64)
    wanted = whole / 2**31
    for bits in (8, 16, 24, 32):
        values = whole >> (32 - bits)
        if bits == 8:
            body = (values + 128).astype(np.uint8).tobytes()
        else:
            body = b"".join(int(one).to_bytes(bits // 8, "little", signed=True) for one in values)
        found = mono_samples(_wav(1, bits, 1, body))[0]
        assert np.abs(found - wanted).max() <= 2.0 ** (1 - bits)
        assert np.array_equal(mono_samples(_wav(0xFFFE, bits, 1, body, inner=1))[0], found)
    for bits in (32, 64):
        body = wanted.astype(f"<f{bits // 8}").tobytes()
        assert np.allclose(mono_samples(_wav(3, bits, 1, body))[0], wanted)
    stereo = np.array([[0.5, 0.25], [-1, 1]], "<f4").tobytes()
    for size in (len(stereo), 0, 0xFFFFFFFF):  # of a file whose writer does not know it
        found = mono_samples(_wav(3, 32, 2, stereo, size=size))[0]
        assert found.tolist() == [0.375, 0]
    samples = _noise(100)
    assert np.array_equal(mono_samples(wav_of(samples, 16000))[0], samples)


_ZEROS = bytes(4000)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "must be a file of type WAV, FLAC"),
        (b"RIFF" + _ZEROS, "must be a file of type"),
        (_wav(6, 8, 1, _ZEROS), "8, 16, 24 or 32 bits"),
        (_wav(1, 12, 1, _ZEROS), "8, 16, 24 or 32 bits"),
        (_wav(3, 16, 1, _ZEROS), "8, 16, 24 or 32 bits"),
        (_wav(0xFFFE, 16, 1, _ZEROS), "8, 16, 24 or 32 bits"),
        (_wav(1, 16, 1, _ZEROS)[:30], "damaged or cut off"),
        (_wav(1, 16, 1, _ZEROS)[:-1], "damaged or cut off"),
        (_wav(1, 16, 1, _ZEROS, size=2**31), "damaged or cut off"),
        (_wav(1, 16, 0, _ZEROS), "0 channels; 1 to 64"),
        (_wav(1, 16, 65, _ZEROS), "65 channels; 1 to 64"),
        (_wav(1, 16, 2, _ZEROS, width=2), "do not agree"),
        (_wav(1, 16, 1, _ZEROS, rate=0), "samples of a second"),
        (_wav(1, 16, 1, _ZEROS, rate=2**31), "samples of a second"),
        (_wav(1, 8, 1, bytes(601_000), rate=1000), "more than 600 s: divide it"),
        (_wav(3, 32, 1, np.full(900, np.nan, "<f4").tobytes()), "not numbers"),
        (_wav(3, 32, 1, np.full(900, 1e30, "<f4").tobytes()), "not numbers"),
        (_wav(3, 64, 1, np.full(900, 1e300, "<f8").tobytes()), "not numbers"),
        (_wav(1, 16, 1, b""), "too short"),
        (_wav(1, 16, 1, bytes(640)), "too short"),
        (_wav(1, 16, 1, bytes(970_000)), "hears at most 30 s"),
    ],
)
def test_other_files_say_what_is_wrong(data: bytes, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        decode(DecodeJob(data, _RULES))
    if "short" not in error and "hears" not in error:
        with pytest.raises(RequestError, match=error):
            decode(DecodeJob(data, _DIVIDED))


def test_damaged_files_give_samples_or_an_error() -> None:
    chooser, good = random.Random(1), _wav(1, 16, 2, _ZEROS, rate=8000)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(chooser.randrange(1, 6)):
            data[chooser.randrange(64)] = chooser.randrange(256)
        data = data[: chooser.choice([len(data), chooser.randrange(len(data))])]
        try:
            found = mono_samples(bytes(data))[0]
        except RequestError:
            continue
        assert np.isfinite(found).all()


def test_a_child_process_decodes_and_what_it_found_is_kept() -> None:
    samples = _noise(20000)
    data, cache = wav_of(samples, 16000), PictureCache[Picture](1 << 20)
    kept = KeptPictures(cache, "a")
    found = picture_of(data, _RULES, kept=kept)
    assert found.kind == "audio"
    spectrum = np.frombuffer(found.pixels, "<f4").reshape(found.layout.sizes[0])
    assert np.array_equal(spectrum, log_mel(samples, _RULES))
    assert picture_of(data, _RULES, kept=kept) is found
    assert picture_of(data, _DIVIDED).digest != found.digest
    with pytest.raises(RequestError, match="must be a file of type"):
        picture_of(b"x" * 50, _RULES)
    assert np.array_equal(
        np.frombuffer(picture_of(wav_of(samples * 0, 16000), _RULES).pixels, "<f4"),
        np.full(math.prod(found.layout.sizes[0]), -1.5, np.float32),
    )
