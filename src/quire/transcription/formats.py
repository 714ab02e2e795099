"""The files that a transcription is written as, with the forms of openai-whisper's writers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from quire.models.media.languages import NAMES
from quire.transcription.records import Segment, Task, Transcript

_LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A form of text that is written segment by segment: the head, then one entry for each."""

    head: str
    body: Callable[[Segment], str]
    is_numbered: bool = False

    def entry(self, segment: Segment, number: int) -> str:
        """The text of a segment. `number`: from 1 on."""
        return f"{number}\n{self.body(segment)}" if self.is_numbered else self.body(segment)

    def whole(self, segments: Iterable[Segment]) -> str:
        """The whole file."""
        entries = (self.entry(one, number) for number, one in enumerate(segments, 1))
        return self.head + "".join(entries)


def timestamp(seconds: float, *, hours: bool, mark: str) -> str:
    """A time as HH:MM:SS and milliseconds after `mark`. `hours`: they are written although they
    are 0."""
    rest, milliseconds = divmod(max(0, round(seconds * 1000)), 1000)
    minutes, rest = divmod(rest, 60)
    whole, minutes = divmod(minutes, 60)
    head = f"{whole:02d}:" if hours or whole else ""
    return f"{head}{minutes:02d}:{rest:02d}{mark}{milliseconds:03d}"


def _line(text: str) -> str:
    """The text in one line, because an empty line would end a subtitle."""
    return _LINE_BREAKS.sub(" ", text.strip())


def _subtitle(segment: Segment, *, hours: bool, mark: str) -> str:
    times = segment.start, segment.end
    if segment.words:
        times = segment.words[0].start, segment.words[-1].end
    begin, end = (timestamp(one, hours=hours, mark=mark) for one in times)
    return f"{begin} --> {end}\n{_line(segment.text).replace('-->', '->')}\n\n"


def _txt(segment: Segment) -> str:
    return f"{_line(segment.text)}\n"


def _srt(segment: Segment) -> str:
    return _subtitle(segment, hours=True, mark=",")


def _vtt(segment: Segment) -> str:
    return _subtitle(segment, hours=False, mark=".")


def _tsv(segment: Segment) -> str:
    times = (round(1000 * one) for one in (segment.start, segment.end))
    return "\t".join([*map(str, times), _line(segment.text).replace("\t", " ")]) + "\n"


TEXT_FORMATS = {
    "txt": TextFormat("", _txt),
    "srt": TextFormat("", _srt, is_numbered=True),
    "vtt": TextFormat("WEBVTT\n\n", _vtt),
    "tsv": TextFormat("start\tend\ttext\n", _tsv),
}


def verbose_json(
    transcript: Transcript, task: Task = "transcribe", *, segments: bool = True, words: bool = False
) -> dict[str, Any]:
    """The object of OpenAI's `verbose_json`. `segments`, `words`: which of them it has."""
    language = "english" if task == "translate" else NAMES.get(
        transcript.language, transcript.language
    )  # fmt: skip
    found: dict[str, Any] = {
        "task": task,
        "language": language,
        "duration": transcript.duration,
        "text": transcript.text,
    }
    if words:
        found["words"] = [
            {"word": word.word.strip(), "start": word.start, "end": word.end}
            for one in transcript.segments
            for word in one.words or ()
        ]
    if segments:
        found["segments"] = [_segment(one) for one in transcript.segments]
    found["usage"] = {"type": "duration", "seconds": math.ceil(transcript.duration)}
    return found


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
