"""`SoundFile`: the numbers of feature extractors, block by block, with all errors of files."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sound_files import TYPES, mono_samples, sound_file

from quire.errors import CapacityError, RequestError
from quire.images import process
from quire.images.modality import SPECTRA
from quire.images.sound.spectrum import SILENCE, log_powers
from quire.images.sound.wav import wav_of
from quire.system.child_pool import ChildPool
from quire.transcription import sound_file as module
from quire.transcription.sound_file import SoundFile, open_sound, opened_sound


def _noise(count: int, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed)
    return (numbers.normal(0, 0.1, count) * np.linspace(0.01, 1, count)).astype(np.float32)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("count", [150, 16000 * 5 + 77, 479700])
def test_a_window_has_the_features_of_transformers(bins: int, count: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    samples = _noise(count)
    wanted = extractor(samples, sampling_rate=16000)["input_features"][0].T
    with open_sound(wav_of(samples, 16000), bins) as sound:
        assert (sound.num_samples, sound.num_frames) == (count, count // 160)
        assert sound.duration == count / 16000
        assert np.abs(sound.window(0) - wanted).max() < 1e-5
        cut = sound.window(0, sound.num_frames)
        assert np.array_equal(cut[: sound.num_frames], sound.window(0)[: sound.num_frames])
        assert not cut[sound.num_frames :].any()


def test_windows_of_a_long_sound_are_parts_of_the_whole_spectrum(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    samples = np.concatenate([_noise(16000 * 70), _noise(16000 * 40 + 99, 1)])
    path = tmp_path / "x.wav"
    path.write_bytes(wav_of(samples, 16000))
    # As openai-whisper does it: with 30 s of silence, and the maximum of the whole sound.
    padded = torch.nn.functional.pad(torch.tensor(samples), (0, 480_000))
    spectrum = torch.stft(padded, 400, 160, window=torch.hann_window(400), return_complex=True)
    from quire.images.sound.spectrum import _filters

    power = (spectrum[:, :-1].abs() ** 2).T @ torch.tensor(_filters(80)).float()
    logs = power.clamp(min=1e-10).log10()
    wanted = ((torch.maximum(logs, logs.max() - 8) + 4) / 4).numpy()
    with open_sound(path, 80) as sound:
        assert sound.num_frames == len(wanted) - 3000 == 11_000
        for first in (0, 1, 4000, 4095, 8500, 10_999):
            assert np.abs(sound.window(first) - wanted[first : first + 3000]).max() < 1e-4
        assert (sound.logarithms(11_002, 5) == SILENCE).all()
        assert (sound.logarithms(11_001, 1) > SILENCE).any()


def test_blocks_of_any_size_have_the_same_logarithms() -> None:
    samples, numbers = _noise(16000 * 50), np.random.default_rng(2)
    [*_, (count, _)] = wanted = [*log_powers([samples], 80)]
    assert count == len(samples)
    for _ in range(5):
        places = np.sort(numbers.integers(0, len(samples), 20))
        found = [*log_powers(np.split(samples, places), 80)]
        for (_, one), (_, other) in zip(found, wanted, strict=True):
            assert np.array_equal(one, other)
    for count in (0, 1, 199, 200, 201):
        [(found_count, frames)] = log_powers([samples[:count]], 80)
        assert found_count == count
        assert len(frames) == -(-(count + 200) // 160)
    assert (frames[0] > SILENCE).all()


@pytest.mark.parametrize("kind", TYPES)
def test_all_types_have_the_spectrum_of_their_samples(kind: str) -> None:
    pytest.importorskip("av")
    given = np.repeat((_noise(44_100 * 2) * 20_000).astype(np.int16)[:, None], 2, 1)
    data = sound_file(kind, given, 48_000)
    samples, rate = mono_samples(data)
    with open_sound(data, 80) as sound, open_sound(wav_of(samples, rate), 80) as other:
        assert sound.num_samples == other.num_samples
        assert np.array_equal(sound.window(0), other.window(0))


def test_errors_name_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    good = wav_of(_noise(32_000), 16000)
    for data, error in [(b"", "must be a file of type"), (good[:-1], "cut off"), (
        good[:4] + b"\0" * 50, "must be a file of type")]:  # fmt: skip
        with pytest.raises(RequestError, match=error):
            open_sound(data, 80)
        assert process._streams._idle  # the child waits for the next file
    with pytest.raises(RequestError, match=r"more than 1\.5 s"):
        open_sound(good, 80, max_seconds=1.5)
    open_sound(good, 80, max_seconds=2).close()
    with pytest.raises(FileNotFoundError):
        open_sound(Path("/nonexistent.wav"), 80)

    full = Mock(**{"return_value.write.side_effect": OSError(errno.ENOSPC, "No space")})
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(CapacityError, match="No space; set TMPDIR"):
        open_sound(good, 80)


def _open_files() -> set[str]:
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{one.name} {one.readlink()}")
        except OSError:
            continue
    return {one for one in found if "deleted" in one}


async def test_a_caller_that_leaves_ends_the_child_and_frees_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, begun, ended = _open_files(), threading.Event(), threading.Event()
    take, threads = module._Spectrum.take, ThreadPoolExecutor(1)
    monkeypatch.setattr(module, "_threads", threads)
    streams = ChildPool(1, partial(process._start, SPECTRA))
    monkeypatch.setattr(process, "_streams", streams)

    def slow(self: module._Spectrum, data: bytes) -> None:
        begun.set()
        try:
            for _ in range(200):
                time.sleep(0.01)
                take(self, data)
        except module._StoppedError:
            ended.set()
            raise

    monkeypatch.setattr(module._Spectrum, "take", slow)

    task = asyncio.create_task(opened_sound(wav_of(_noise(16000), 16000), 80))
    await asyncio.to_thread(begun.wait, 30)
    assert _open_files() > before
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.shutdown()  # waits for it
    assert ended.wait(30)
    assert _open_files() == before
    assert not process._streams._idle


def test_close_frees_the_file() -> None:
    before = _open_files()
    sound = asyncio.run(opened_sound(wav_of(_noise(16000), 16000), 80))
    assert isinstance(sound, SoundFile)
    assert len(_open_files()) == len(before) + 1
    sound.close()
    sound.close()
    assert _open_files() == before
