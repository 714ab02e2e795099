"""Subtitles and JSON: the forms of openai-whisper's writers and of OpenAI's objects."""

from __future__ import annotations

from quire.transcription.formats import TEXT_FORMATS, timestamp, verbose_json
from quire.transcription.records import Segment, Transcript, Word


def _segment(number: int, start: float, end: float, text: str, *words: Word) -> Segment:
    return Segment(
        id=number, seek=0, start=start, end=end, text=text, tokens=(5, 6), temperature=0.0,
        avg_logprob=-0.25, compression_ratio=1.5, no_speech_prob=0.125, words=words or None,
    )  # fmt: skip


_WORD = Word(word=" Hello", start=0.5, end=1.25, probability=0.75)
_SEGMENTS = [
    _segment(0, 0.0, 1.5, " Hello", _WORD),
    _segment(1, 3661.9996, 3662.3, " a --> b\n\n\tc "),
]


def test_times_are_rounded_to_milliseconds_before_they_are_divided() -> None:
    assert timestamp(59.9996, hours=True, mark=",") == "00:01:00,000"
    assert timestamp(59.9994, hours=False, mark=".") == "00:59.999"
    assert timestamp(360_000, hours=False, mark=".") == "100:00:00.000"


def test_text_formats() -> None:
    assert TEXT_FORMATS["srt"].whole(_SEGMENTS) == (
        "1\n00:00:00,500 --> 00:00:01,250\nHello\n\n2\n01:01:02,000 --> 01:01:02,300\na -> b c\n\n"
    )
    assert TEXT_FORMATS["vtt"].whole(_SEGMENTS) == (
        "WEBVTT\n\n00:00.500 --> 00:01.250\nHello\n\n01:01:02.000 --> 01:01:02.300\na -> b c\n\n"
    )
    assert TEXT_FORMATS["tsv"].whole(_SEGMENTS) == (
        "start\tend\ttext\n0\t1500\tHello\n3662000\t3662300\ta --> b c\n"
    )
    assert TEXT_FORMATS["txt"].whole(_SEGMENTS) == "Hello\na --> b c\n"
    assert TEXT_FORMATS["vtt"].whole([]) == "WEBVTT\n\n"


def test_verbose_json_has_the_fields_of_openai() -> None:
    transcript = Transcript(
        language="cy", language_probability=0.5, duration=8.2, segments=_SEGMENTS
    )
    found = verbose_json(transcript, words=True)
    assert [*found] == ["task", "language", "duration", "text", "words", "segments", "usage"]
    assert found["language"] == "welsh"
    assert found["text"] == "Hello a --> b\n\n\tc"
    assert found["words"] == [{"word": "Hello", "start": 0.5, "end": 1.25}]
    assert found["segments"][0] == {
        "id": 0, "seek": 0, "start": 0.0, "end": 1.5, "text": " Hello", "tokens": [5, 6],
        "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5,
        "no_speech_prob": 0.125,
    }  # fmt: skip
    assert found["usage"] == {"type": "duration", "seconds": 9}
    short = verbose_json(transcript, "translate", segments=False)
    assert short["language"] == "english"
    assert "segments" not in short
    assert "words" not in short
