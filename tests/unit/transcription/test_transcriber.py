"""`Transcriber`: prompts, fallback, windows and segments, for fixed tokens."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.errors import RequestError
from quire.images.sound.wav import wav_of
from quire.tokenizer.whisper_tokens import WhisperTokens
from quire.transcription.records import (
    Decoded,
    Floats,
    Segment,
    Transcript,
    TranscriptionOptions,
)
from quire.transcription.transcriber import Transcriber

_EOT, _SOT, _EN, _DE, _TRANSLATE, _TRANSCRIBE, _PREV, _NO_SPEECH, _NO_TIMES, _T0 = range(300, 310)
_TOKENS = WhisperTokens(
    sot=_SOT, eot=_EOT, transcribe=_TRANSCRIBE, translate=_TRANSLATE, sot_prev=_PREV,
    no_speech=_NO_SPEECH, no_timestamps=_NO_TIMES, first_timestamp=_T0,
    languages={"en": _EN, "de": _DE}, suppress=(), begin_suppress=(), alignment_heads=((0, 0),),
    max_initial_timestamp_index=50, is_multilingual=True,
)  # fmt: skip


class _Coder:
    """A token is a character."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [*map(ord, text)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        assert skip_special_tokens
        return "".join(map(chr, ids))


def _at(seconds: float) -> int:
    return _T0 + round(seconds / 0.02)


def _said(*parts: float | str) -> list[int]:
    """Tokens of times and texts."""
    found: list[int] = []
    for part in parts:
        found += _Coder().encode(part, add_special_tokens=False) if isinstance(part, str) else [
            _at(part)
        ]  # fmt: skip
    return found


class _Engine:
    """Gives replies, in the order of calls, or by the number of the window."""

    def __init__(self, *replies: Any, no_speech: float = 0.0) -> None:
        self.replies, self.no_speech = [*replies], no_speech
        self.prompts: list[list[int]] = []
        self.temperatures: list[float] = []
        self.windows: list[Floats] = []
        self.num_running = self.most_running = 0
        self.num_finished = 0
        self.num_quick = 1000
        """Calls that end soon."""
        self.pick: Callable[[Floats], Any] = lambda _: self.replies.pop(0)

    def within(self, salt: str | None) -> _Engine:
        del salt
        return self

    async def decode(
        self, window: Floats, prompt_token_ids: Sequence[int], *, timestamps: bool,
        temperature: float, max_tokens: int, seed: int | None, best_of: int = 1,
    ) -> Decoded:  # fmt: skip
        del timestamps, seed
        assert best_of == (5 if temperature else 1)
        assert window.shape == (3000, 80)
        self.windows.append(window)
        self.prompts.append([*prompt_token_ids])
        self.temperatures.append(temperature)
        assert max_tokens == min(50, 100 - len(prompt_token_ids))
        reply = self.pick(window)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(0.01 if len(self.prompts) <= self.num_quick else 60)
        finally:
            self.num_running -= 1
        logprob = -0.1
        if isinstance(reply, tuple):
            reply, logprob = reply
        return Decoded(token_ids=tuple(reply), logprobs=(logprob,) * (len(reply) + 1))

    async def probabilities(
        self, window: Floats, prompt_token_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[float]:
        assert window.shape == (3000, 80)
        assert prompt_token_ids[-1] == _SOT
        return [{_NO_SPEECH: self.no_speech, _EN: 0.1, _DE: 0.3}[one] for one in token_ids]

    async def finish(self, window: Floats) -> None:
        assert window.shape == (3000, 80)
        self.num_finished += 1

    async def alignment(self, window: Floats, token_ids: Sequence[int]) -> Floats:
        """Each token of the text takes 0.2 s, from 0 s on."""
        del window
        products = np.full((1, len(token_ids), 1500), -50, np.float32)
        for row in range(len(token_ids)):
            begin = max(0, 10 * (row - 3))
            products[0, row, begin : begin + 10] = 50
        return products


_RNG = np.random.default_rng(0)


def _sound(seconds: float) -> bytes:
    return wav_of(_RNG.normal(0, 0.1, round(seconds * 16000)).astype(np.float32), 16000)


def _run(engine: _Engine, sound: bytes, **options: Any) -> tuple[Transcript, list[Segment]]:
    tokens = options.pop("tokens", _TOKENS)
    transcriber = Transcriber(engine, _Coder(), tokens, bins=80, num_positions=100)

    async def read() -> list[Any]:
        asked = TranscriptionOptions(**options)
        return [one async for one in transcriber.transcribe(sound, asked)]

    header, *segments = asyncio.run(read())
    return header, segments


def test_segments_end_at_pairs_of_times_and_the_rest_is_heard_again() -> None:
    engine = _Engine(
        _said(0.0, " One.", 2.5, 2.5, " Two", 4.0, 4.0, " unfin"),
        _said(0.5, " Three", 3.0),
        _said(0.0, " Four"),
        _said(" Five", 1.5),
    )
    header, segments = _run(engine, _sound(70))
    assert (header.language, header.duration, header.segments) == ("de", 70.0, [])
    assert header.language_probability == pytest.approx(0.75)
    found = [(one.id, one.seek, one.start, one.end, one.text) for one in segments]
    assert found == [
        (0, 0, 0.0, 2.5, " One."),
        (1, 0, 2.5, 4.0, " Two"),
        (2, 400, 4.0, 7.0, " Three"),  # without a pair it begins with the window
        (3, 3400, 34.0, 64.0, " Four"),
        (4, 6400, 64.0, 65.5, " Five"),
    ]
    assert engine.num_finished == 4
    assert segments[1].tokens == tuple(_said(2.5, " Two", 4.0))
    assert segments[1].logprobs == (-0.1,) * 6
    assert segments[0].avg_logprob == pytest.approx(-0.1)
    text = b"One. Two unfin"
    assert segments[0].compression_ratio == len(text) / len(zlib.compress(text))
    head = [_SOT, _DE, _TRANSCRIBE]
    assert engine.prompts[0] == head
    assert engine.prompts[1] == [_PREV, *_said(0.0, " One.", 2.5, 2.5, " Two", 4.0), *head]
    # The end of the sound is followed by zeros, not by silence.
    assert not engine.windows[3][600:].any()
    assert engine.windows[3][:599].all(axis=1).any()


def test_a_prompt_has_the_initial_text_and_at_most_half_of_the_positions() -> None:
    engine = _Engine(_said(0.0, "a", 1.0), _said(0.0, "b", 1.0))
    _, segments = _run(
        engine, _sound(31), language="en", task="translate", initial_prompt=" Names: Zoe "
    )
    head = [_SOT, _EN, _TRANSLATE]
    assert engine.prompts[0] == [_PREV, *_said(" Names: Zoe"), *head]
    assert engine.prompts[1] == [_PREV, *_said(" Names: Zoe", 0.0, "a", 1.0), *head]
    assert len(segments) == 2
    engine = _Engine(_said(0.0, "a", 1.0))
    _run(engine, _sound(3), language="en", initial_prompt="x" * 70)
    assert engine.prompts[0] == [_PREV, *_said("x" * 49), _SOT, _EN, _TRANSCRIBE]


def test_bad_texts_are_decoded_again_at_higher_temperatures() -> None:
    good = _said(0.0, " fine", 1.0)
    repeated = _said(0.0, " la" * 12, 1.0)
    engine = _Engine(repeated, (good, -1.5), good, good)
    _, [first, second] = _run(engine, _sound(31), temperatures=(0.0, 0.4, 0.8))
    assert engine.temperatures == [0.0, 0.4, 0.8, 0.0]
    assert (first.temperature, second.temperature) == (0.8, 0.0)
    assert engine.prompts[3] == [_SOT, _DE, _TRANSCRIBE]  # not the text of temperature 0.8
    engine = _Engine(repeated, repeated)
    _, [only] = _run(engine, _sound(3), temperatures=(0.0, 1.0))
    assert only.temperature == 1.0  # the last one stays
    assert only.compression_ratio > 2.4
    engine = _Engine((good, -1.5), repeated, good)
    _, [first, _] = _run(engine, _sound(31), temperatures=(0.0, 1.0))
    assert (first.text, first.temperature) == (" fine", 1.0)  # the best one, but no condition
    assert engine.prompts[2] == [_SOT, _DE, _TRANSCRIBE]
    engine = _Engine((repeated, -9.0))
    _run(engine, _sound(3), compression_ratio_threshold=None, logprob_threshold=None)
    assert engine.temperatures == [0.0]


def test_windows_without_speech_give_nothing() -> None:
    poor = (_said(0.0, " Thanks.", 2.0), -1.5)
    engine = _Engine(poor, no_speech=0.7)
    header, segments = _run(engine, _sound(20))
    assert (header.duration, segments, engine.temperatures) == (20.0, [], [0.0])
    sure = _said(0.0, " Thanks.", 2.0)
    [segment] = _run(_Engine(sure, no_speech=0.7), _sound(20))[1]
    assert segment.no_speech_prob is None
    [segment] = _run(_Engine(sure, no_speech=0.7), _sound(20), silence=True)[1]
    assert segment.no_speech_prob == 0.7
    assert len(_run(_Engine(poor, no_speech=0.7), _sound(20), temperatures=(0.0,),
                    no_speech_threshold=None)[1]) == 1  # fmt: skip
    assert _run(_Engine(sure, no_speech=0.7), _sound(20), logprob_threshold=None)[1] == []
    assert _run(_Engine(), wav_of(np.zeros(100, np.float32), 16000))[1] == []


def test_segments_without_text_or_time_are_left_out() -> None:
    engine = _Engine(_said(0.0, " ", 1.0, 1.0, "x", 1.0, 1.0, " y", 2.0, 2.0), _said(" "))
    _, [only] = _run(engine, _sound(10))
    assert (only.id, only.text) == (0, " y")


def test_windows_that_do_not_depend_on_each_other_are_decoded_at_once() -> None:
    engine = _Engine()
    numbers: dict[bytes, int] = {}
    engine.pick = lambda window: _said(f" w{numbers.setdefault(window.tobytes(), len(numbers))}")
    options = {"timestamps": False, "condition_on_previous_text": False, "initial_prompt": "n"}
    _, segments = _run(engine, _sound(30 * 11 + 4), **options)
    assert [one.text for one in segments] == [f" w{number}" for number in range(12)]
    assert [one.seek for one in segments] == [*range(0, 36000, 3000)]
    assert (segments[11].start, segments[11].end) == (330.0, 334.0)
    assert engine.most_running == 8
    assert engine.prompts[0] == [_PREV, *_said(" n"), _SOT, _DE, _TRANSCRIBE, _NO_TIMES]
    assert engine.prompts[1] == [_SOT, _DE, _TRANSCRIBE, _NO_TIMES]


@pytest.mark.parametrize("is_conditioned", [True, False])
def test_parts_without_speech_are_left_out_and_times_are_those_of_the_file(
    is_conditioned: bool,
) -> None:
    noise = _RNG.normal(0, 0.3, 16000 * 60) * (np.arange(16000 * 60) // 1600 % 2)
    samples = _RNG.normal(0, 1e-4, 16000 * 60)
    samples[160_000:240_000] += noise[:80_000]  # 10 s to 15 s
    samples[640_000:720_000] += noise[:80_000]  # 40 s to 45 s
    engine = _Engine(_said(0.0, " One", 5.6, 6.0, " Two", 9.0, 9.5, " Th", 11.0))
    if not is_conditioned:
        engine.pick = lambda _: _said(0.0, " One", 5.6, 6.0, " Two", 9.0, 9.0, " Th")
    _, segments = _run(
        engine, wav_of(samples.astype(np.float32), 16000), vad_filter=True, language="en",
        condition_on_previous_text=is_conditioned,
    )  # fmt: skip
    assert len(engine.windows) == 1
    assert not engine.windows[0][1170:].any()
    one, two, last = segments
    assert one.start == pytest.approx(9.6, abs=0.1)
    assert one.end == pytest.approx(15.2, abs=0.1)
    assert two.start == pytest.approx(39.8, abs=0.2)
    assert two.end == pytest.approx(42.8, abs=0.2)
    assert last.end == pytest.approx(45.2, abs=0.5)
    assert _run(_Engine(), wav_of(np.zeros(99_999, np.float32), 16000), vad_filter=True)[1] == []


def test_words_have_times_and_the_next_window_begins_after_the_last_one() -> None:
    engine = _Engine(
        _said(0.0, " ab, c", 1.2, 1.2, " d", 1.6, 1.6), _said(0.0, " e", 0.4)
    )  # fmt: skip
    _, segments = _run(engine, _sound(20), word_timestamps=True, language="en")
    assert segments[0].words is not None
    found = [(one.word, one.start, one.end) for one in segments[0].words]
    assert found == [(" ab,", 0.0, 0.6), (" c", 0.8, 1.2)]
    assert segments[0].words[0].probability == pytest.approx(np.exp(-0.1))
    assert [(one.start, one.end) for one in segments] == [(0.0, 1.2), (1.2, 1.6), (1.6, 2.0)]
    assert segments[2].seek == 160


def test_models_of_english_alone_have_short_prompts() -> None:
    tokens = replace(_TOKENS, is_multilingual=False, languages={})
    engine = _Engine(_said(0.0, "a", 1.0))
    header, _ = _run(engine, _sound(3), tokens=tokens)
    assert (header.language, header.language_probability) == ("en", 1.0)
    assert engine.prompts == [[_SOT]]
    with pytest.raises(RequestError, match="knows English alone"):
        _run(_Engine(), _sound(1), tokens=tokens, task="translate")
    with pytest.raises(RequestError, match="'de' is not known to the model; it must be one of en"):
        _run(_Engine(), _sound(1), tokens=tokens, language="de")


def test_options_that_cannot_be_used_are_errors() -> None:
    with pytest.raises(RequestError, match=r"must be one of de, en$"):
        _run(_Engine(), _sound(1), language="xx")
    with pytest.raises(RequestError, match="no special tokens"):
        _run(_Engine(), _sound(1), initial_prompt=chr(_EOT))
    with pytest.raises(RequestError, match="at least one number"):
        _run(_Engine(), _sound(1), temperatures=())
    with pytest.raises(RequestError, match="must be a file of type"):
        _run(_Engine(), b"no sound")


async def test_a_caller_that_leaves_cancels_what_runs() -> None:
    engine = _Engine()
    engine.pick, engine.num_quick = (lambda _: _said(" x")), 1
    transcriber = Transcriber(engine, _Coder(), _TOKENS, bins=80, num_positions=100)
    options = TranscriptionOptions(timestamps=False, condition_on_previous_text=False)

    items = transcriber.transcribe(_sound(600), options)
    await anext(items)
    await anext(items)
    assert engine.num_running == 7
    await items.aclose()
    await asyncio.sleep(0)
    assert not engine.num_running
