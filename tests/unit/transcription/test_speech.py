"""The filter for parts without speech, and the times of what is left."""

from __future__ import annotations

import numpy as np
import pytest

from quire.images.sound.wav import wav_of
from quire.transcription.sound_file import SoundFile, open_sound
from quire.transcription.speech import speech_spans
from quire.transcription.timeline import Timeline


def _voice(seconds: float, seed: int) -> np.ndarray:
    """Harmonics of a changing pitch, in syllables of 0.2 s with pauses, as speech has them."""
    numbers = np.random.default_rng(seed)
    found = []
    for _ in range(round(seconds / 0.25)):
        times = np.arange(3200) / 16000
        pitch, formant = numbers.uniform(90, 220), numbers.uniform(400, 2500)
        tones = [
            np.exp(-(((pitch * n - formant) / 500) ** 2)) * np.sin(2 * np.pi * pitch * n * times)
            for n in range(1, 20)
        ]
        found += [sum(tones) * np.hanning(3200), np.zeros(800)]
    return 0.2 * np.concatenate(found)


def _opened(samples: np.ndarray, bins: int = 80) -> SoundFile:
    return open_sound(wav_of(samples.astype(np.float32), 16000), bins)


def _noise(seconds: float, kind: str, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed)
    white = numbers.normal(0, 1, round(seconds * 16000))
    if kind == "white":
        return white
    spectrum = np.fft.rfft(white) / np.sqrt(np.arange(1, len(white) // 2 + 2))
    pink: np.ndarray = np.fft.irfft(spectrum, len(white))
    return pink / pink.std()


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("kind", ["white", "pink"])
def test_no_speech_is_left_out_and_most_of_the_rest_is(kind: str, bins: int) -> None:
    silence = [np.zeros(16000 * seconds) for seconds in (6, 5, 4)]
    voice = [_voice(4, 1), _voice(3, 2), _voice(0.5, 3)]
    parts = [one for pair in zip(voice, silence, strict=True) for one in pair]
    samples = np.concatenate(parts)
    is_voice = np.concatenate([np.full(len(one) // 160, one.any()) for one in parts])
    power = (samples**2).sum() / (np.count_nonzero(is_voice) * 160)
    for signal_to_noise in (60, 20, 10, 3):
        level = np.sqrt(power / 10 ** (signal_to_noise / 10))
        with _opened(samples + level * _noise(len(samples) / 16000, kind), bins) as sound:
            spans = speech_spans(sound)
        kept = np.zeros(len(is_voice), bool)
        for span in spans:
            kept[span.start : span.stop] = True
        assert kept[is_voice].all(), signal_to_noise
        assert len(spans) == 3
        assert kept[~is_voice].mean() < 0.2


@pytest.mark.parametrize("level", [1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("kind", ["white", "pink"])
def test_steady_sounds_are_no_speech(kind: str, level: float) -> None:
    with _opened(_noise(90, kind) * level) as sound:
        assert speech_spans(sound) == []


def test_short_and_silent_sounds() -> None:
    for count in (0, 100, 1000, 16000):
        with _opened(np.zeros(count)) as sound:
            assert speech_spans(sound) == []
            assert Timeline(sound, []).head().shape == (3000, 80)
    with _opened(_voice(0.5, 1)) as sound:
        assert speech_spans(sound) == [range(50)]
    times = np.arange(16000 * 20) / 16000
    with _opened(0.2 * np.sin(2 * np.pi * 440 * times)) as sound:
        assert speech_spans(sound) == []


def test_a_timeline_has_the_frames_of_its_spans_and_their_times() -> None:
    with _opened(_noise(100, "white") * 0.1) as sound:
        spans = [range(100, 300), range(1000, 1500), range(4000, 8500)]
        timeline = Timeline(sound, spans)
        assert timeline.num_frames == 5200
        whole = np.concatenate([sound.window(one.start)[: len(one)] for one in spans[:2]])
        window = timeline.window(50, 600)
        assert np.array_equal(window[:600], whole[50:650])
        assert not window[600:].any()
        across = timeline.window(600, 3000)
        assert np.array_equal(across[100:], sound.window(4000, 2900)[:2900])
        assert timeline.independent() == [range(700), range(700, 3700), range(3700, 5200)]
        assert [timeline.frame(one) for one in (0, 199, 200, 5199)] == [100, 299, 1000, 8499]
        assert timeline.segment_times(0.0, 2.0) == (1.0, 3.0)
        assert timeline.segment_times(2.0, 7.0) == (10.0, 15.0)
        assert timeline.segment_times(1.0, 8.0) == (2.0, 41.0)
        assert timeline.word_times(1.8, 2.6) == (10.0, 10.6)
        assert timeline.word_times(1.8, 2.1) == pytest.approx((2.8, 3.0))
        everything = Timeline(sound)
        assert everything.segment_times(0.123, 99.9999) == (0.123, 99.9999)
        assert everything.independent() == [
            range(0, 3000), range(3000, 6000), range(6000, 9000), range(9000, 10_000)
        ]  # fmt: skip
        assert np.array_equal(everything.head(), everything.window(0, 3000))
